#include "harness/roofline/roofline.h"

#include <algorithm>
#include <utility>

namespace mixroof {
namespace {

struct ComputeRoof {
  double time_s = 0;
  std::vector<std::string> ids;
  std::string missing_path;  // of a format with FLOPs and without a ceiling
};

ComputeRoof compute_roof(const std::vector<Ceiling>& ceilings, const Work& work) {
  ComputeRoof result;
  for (std::size_t i = 0; i < work.flops.size(); ++i) {
    if (work.flops[i] == 0) continue;
    const std::string_view path = compute_path(static_cast<Format>(i), work.emulated);
    const Ceiling* ceiling = best_compute(ceilings, path);
    if (ceiling == nullptr) {
      result.missing_path = path;
      return result;
    }
    result.time_s += static_cast<double>(work.flops[i]) / ceiling->rate();
    if (std::find(result.ids.begin(), result.ids.end(), ceiling->id) == result.ids.end())
      result.ids.push_back(ceiling->id);
  }
  return result;
}

}  // namespace

std::string_view name(CacheState state) {
  switch (state) {
    case CacheState::cold:
      return "cold";
    case CacheState::hot:
      return "hot";
    case CacheState::in_step:
      return "in_step";
  }
  return "cold";
}

std::string_view name(Bound bound) { return bound == Bound::compute ? "compute" : "memory"; }

std::optional<double> read_share(std::string_view mix) {
  if (mix == "read") return 1.0;
  if (mix == "triad") return 2.0 / 3.0;
  if (mix == "copy") return 0.5;
  if (mix == "write") return 0.0;
  return std::nullopt;
}

Roofline::Roofline(std::vector<Ceiling> ceilings, std::vector<MemoryLevel> levels)
    : ceilings_(std::move(ceilings)), levels_(std::move(levels)) {}

std::optional<Roofline::Bandwidth> Roofline::bandwidth_of(std::string_view level, double share) const {
  const Ceiling *below = nullptr, *above = nullptr;  // nearest measured mixes with less and with more reading
  double below_share = 0, above_share = 0;
  for (const Ceiling& ceiling : ceilings_) {
    if (ceiling.kind != CeilingKind::bandwidth || ceiling.level != level || ceiling.measured.empty()) continue;
    const std::optional<double> own = read_share(ceiling.mix);
    if (!own) continue;
    if (*own <= share && (below == nullptr || *own > below_share)) below = &ceiling, below_share = *own;
    if (*own >= share && (above == nullptr || *own < above_share)) above = &ceiling, above_share = *own;
  }
  if (below == nullptr && above == nullptr) return std::nullopt;
  if (below == nullptr) below = above;
  if (above == nullptr) above = below;
  if (below == above) return Bandwidth{below->rate(), {below->id}};
  const double weight = (share - below_share) / (above_share - below_share);
  return Bandwidth{1 / ((1 - weight) / below->rate() + weight / above->rate()), {below->id, above->id}};
}

std::optional<Roofline::Bandwidth> Roofline::bandwidth(const Work& work, CacheState state) const {
  const double share = static_cast<double>(work.bytes_read) / static_cast<double>(work.bytes());
  std::optional<Bandwidth> best = bandwidth_of(kDramLevel, share);
  if (state == CacheState::cold) return best;
  for (const MemoryLevel& level : levels_) {
    if (work.bytes() > level.capacity_bytes) continue;
    const std::optional<Bandwidth> near = bandwidth_of(level.name, share);
    if (near && (!best || near->byte_per_s > best->byte_per_s)) best = near;
  }
  return best;
}

RoofResult Roofline::roof(const Work& work, CacheState state) const {
  ComputeRoof compute = compute_roof(ceilings_, work);
  if (!compute.missing_path.empty())
    return {std::nullopt, "no compute ceiling of path " + compute.missing_path + " (measure with --parts ceilings)"};
  Roof roof{.time_s = compute.time_s, .bound = Bound::compute, .ceiling_ids = std::move(compute.ids)};
  if (work.bytes() == 0) return {roof, {}};
  const std::optional<Bandwidth> memory = bandwidth(work, state);
  if (!memory) return {std::nullopt, "no bandwidth ceiling (measure with --parts ceilings)"};
  roof.ceiling_ids.insert(roof.ceiling_ids.end(), memory->ids.begin(), memory->ids.end());
  const double memory_s = static_cast<double>(work.bytes()) / memory->byte_per_s;
  if (memory_s >= roof.time_s) {
    roof.time_s = memory_s;
    roof.bound = Bound::memory;
  }
  return {roof, {}};
}

std::optional<Point> Roofline::point(const Work& work, CacheState state, double time_s) const {
  const RoofResult result = roof(work, state);
  if (!result.roof || !(time_s > 0)) return std::nullopt;
  const double fraction = result.roof->time_s / time_s;
  return Point{.roof = *result.roof, .fraction = fraction, .above_ceiling = fraction > kAboveCeiling};
}

Roofline::Sum Roofline::roof_sum(const std::vector<Work>& ops, CacheState state) const {
  double sum = 0;
  for (const Work& op : ops) {
    const RoofResult result = roof(op, state);
    if (!result.roof) return {std::nullopt, result.reason};
    sum += result.roof->time_s;
  }
  return {sum, {}};
}

}  // namespace mixroof
