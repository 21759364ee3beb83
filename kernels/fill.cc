#include "kernels/fill.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/control.h"

namespace mixroof {

std::uint64_t operand_seed(std::uint64_t seed, const Problem& problem, std::string_view operand) {
  // FNV-1a, 64 bits.
  std::uint64_t hash = 0xcbf29ce484222325ULL ^ seed;
  const auto add = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  };
  add(problem.id());
  add(operand);
  return hash;
}

std::vector<double> healthy_control() {
  std::vector<double> control(kControlSlots, 0.0);
  slot(control.data(), Slot::effective_tokens) = 1000;
  slot(control.data(), Slot::loss_sum) = 3000;
  slot(control.data(), Slot::grad_square_sum) = 1024.0 * 1024.0;
  slot(control.data(), Slot::apply) = 1;
  slot(control.data(), Slot::grad_factor) = 1.0 / 1024;
  slot(control.data(), Slot::grad_norm) = 1;
  slot(control.data(), Slot::clip_coefficient) = 1;
  slot(control.data(), Slot::learning_rate) = 1e-3;
  slot(control.data(), Slot::bias_correction1) = 1 - std::pow(0.9, 3);
  slot(control.data(), Slot::bias_correction2) = 1 - std::pow(0.95, 3);
  slot(control.data(), Slot::scale_used) = 1024;
  slot(control.data(), Slot::loss_scale) = 1024;
  slot(control.data(), Slot::growth_tracker) = 3;
  slot(control.data(), Slot::updates_attempted) = 3;
  slot(control.data(), Slot::updates_applied) = 3;
  slot(control.data(), Slot::tokens_consumed) = 3000;
  return control;
}

namespace {

std::vector<double> document_starts(const Operand& operand, std::uint64_t seed) {
  const std::int64_t seq = operand.fill.limit;
  std::vector<double> starts(static_cast<std::size_t>(operand.count()));
  if (starts.empty()) return starts;
  const std::int64_t length = std::clamp<std::int64_t>(std::llround(operand.fill.scale), 1, seq);
  const std::int64_t rest = seq % length;
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<std::int64_t> document(0, seq / length);
  for (std::int64_t row = 0; row < operand.count(); row += seq) {
    const std::int64_t shorter = document(random) * length;  // where the rest lies
    std::int64_t start = 0;
    for (std::int64_t t = 0; t < seq; ++t) {
      if (t == start + (start == shorter && rest > 0 ? rest : length)) start = t;
      starts[static_cast<std::size_t>(row + t)] = static_cast<double>(start);
    }
  }
  return starts;
}

}  // namespace

std::vector<double> fill_values(const Operand& operand, std::uint64_t seed, bool integers) {
  const Fill& fill = operand.fill;
  if (fill.kind == Fill::Kind::control) return healthy_control();
  if (fill.kind == Fill::Kind::documents) return document_starts(operand, seed);
  std::vector<double> values(static_cast<std::size_t>(std::min(operand.count(), kDistinctValues)));
  std::mt19937_64 random(seed);
  if (integers && fill.exact_limit > 0) {
    std::uniform_int_distribution<int> whole(-fill.exact_limit, fill.exact_limit);
    std::generate(values.begin(), values.end(), [&] { return whole(random); });
    return values;
  }
  std::normal_distribution<double> normal(0.0, fill.scale);
  std::uniform_int_distribution<std::int64_t> token(0, std::max<std::int64_t>(fill.limit - 1, 0));
  std::uniform_int_distribution<int> eighth(0, 7);
  for (double& value : values) switch (fill.kind) {
      case Fill::Kind::normal: value = fill.offset + normal(random); break;
      case Fill::Kind::positive: value = fill.offset + std::fabs(normal(random)); break;
      case Fill::Kind::tokens: value = static_cast<double>(token(random)); break;
      case Fill::Kind::targets: value = eighth(random) == 0 ? -1.0 : static_cast<double>(token(random)); break;
      case Fill::Kind::constant: value = fill.offset; break;
      case Fill::Kind::control:
      case Fill::Kind::documents: break;
    }
  return values;
}

}  // namespace mixroof
