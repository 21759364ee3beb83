#include "harness/roofline/ceiling.h"

#include <algorithm>

namespace mixroof {

std::string_view name(CeilingKind kind) { return kind == CeilingKind::compute ? "compute" : "bandwidth"; }

void merge_best(std::vector<Ceiling>& kept, std::span<const Ceiling> measured_again) {
  for (const Ceiling& ceiling : measured_again) {
    const auto same = std::find_if(kept.begin(), kept.end(), [&](const Ceiling& k) { return k.id == ceiling.id; });
    if (same == kept.end())
      kept.push_back(ceiling);
    else if (same->measured.empty() || ceiling.rate() > same->rate())
      *same = ceiling;
  }
}

std::string_view compute_path(Format format, bool emulated) { return name(emulated ? Format::fp32 : format); }

const Ceiling* best_compute(std::span<const Ceiling> ceilings, std::string_view path) {
  const std::string matmul_path = std::string(path) + "_matmul";
  const Ceiling* best = nullptr;
  for (const Ceiling& ceiling : ceilings) {
    if (ceiling.kind != CeilingKind::compute || ceiling.measured.empty()) continue;
    if (ceiling.path != path && ceiling.path != matmul_path) continue;
    if (best == nullptr || ceiling.rate() > best->rate()) best = &ceiling;
  }
  return best;
}

}  // namespace mixroof
