#include "harness/observe/numerics_limits.h"

#include <algorithm>
#include <cmath>

namespace mixroof {
namespace {

/// The worst of the oracle's yardsticks, with as many layers as its models have.
struct Yardstick {
  double grad_rel_l2, update_rel_l2, loss_rel_diff;
};
constexpr double kYardstickLayers = 2;
constexpr double kMostGradRelL2 = 0.5, kMostUpdateRelL2 = 0.9;

Yardstick yardstick(const Recipe& recipe) {
  if (recipe.uses_fp8()) return {0.24, 0.54, 0.03};
  // tf32 has the mantissa of fp16.
  const auto is_in = [&](Format format) { return recipe.matmul_forward == format || recipe.matmul_gradient == format; };
  if (is_in(Format::bf16)) return {0.0223, 0.16, 0.02};
  if (is_in(Format::fp16) || is_in(Format::tf32)) return {0.0029, 0.06, 0.02};
  return {1.1e-6, 6e-3, 0.02};
}

}  // namespace

NumericsLimits limits_for(const Recipe& recipe, std::int64_t layers) {
  const Yardstick y = yardstick(recipe);
  const double deeper = std::sqrt(std::max(1.0, static_cast<double>(layers) / kYardstickLayers));
  NumericsLimits limits;
  limits.grad_rel_l2 = std::min(2 * y.grad_rel_l2 * deeper, kMostGradRelL2);
  limits.grad_cosine = 1 - limits.grad_rel_l2 * limits.grad_rel_l2 / 2;
  limits.update_rel_l2 = std::min(2 * y.update_rel_l2 * std::sqrt(deeper), kMostUpdateRelL2);
  limits.loss_rel_diff = y.loss_rel_diff;
  limits.tensor_rel_l2 = std::min(4 * limits.grad_rel_l2, 1.0);
  return limits;
}

}  // namespace mixroof
