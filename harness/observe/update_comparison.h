// One update of a recipe beside FP32's from equal inputs: FP32 takes over the recipe's state (its master copies where
// it has them, else its parameters; both moments; the clocks), runs the same window, and every tensor that both compute
// is compared as its op leaves it. Untimed.
#pragma once

#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "harness/execute/execution.h"
#include "harness/observe/numerics_limits.h"
#include "harness/observe/op_place.h"
#include "harness/observe/value_comparison.h"

namespace mixroof {

/// The first tensor that is further from FP32 than its limit, in the order of the ops.
struct Divergence {
  Place place;
  double rel_l2 = 0, limit = 0;
};

/// One tensor in one phase, over all micro-batches, as stored: gradients still carry the loss scale.
struct TensorEvidence {
  std::string name;
  Phase phase = Phase::forward;
  ValueStats stats;
  std::optional<ZeroCounts> zeros;  // of gradients that FP32 has too
};

struct UpdateComparison {
  std::int64_t update = 0;  // attempted, from 1
  bool applied = false;
  double loss_scale = 1;
  std::int64_t stride = 1;  // of large tensors one value in so many was compared
  // Of weight gradients, unscaled, before clipping.
  DifferenceSums grad;
  std::string worst_tensor;
  double worst_rel_l2 = 0;
  ZeroCounts grad_zeros;          // felt: at least AdamW's eps after clipping
  ZeroCounts activation_zeros;    // of gradients of activations
  double subnormal_fraction = 0;  // of both, stored with fewer bits than the format has
  // Of the optimizer, when the update was applied. Step (after - before): of master copies where there are some, else
  // of parameters.
  DifferenceSums step;
  std::array<DifferenceSums, 2> moments;
  ZeroCounts moment2_zeros;
  AbsorbedCounts absorbed;
  double step_square_sum = 0, largest_step = 0;  // of the recipe, over all values, in learning rates
  std::int64_t steps = 0;
  double step_bound = 0;  // of exact AdamW
  double step_rms() const { return steps > 0 ? std::sqrt(step_square_sum / static_cast<double>(steps)) : 0; }
  std::vector<TensorEvidence> tensors;
  std::optional<Place> first_nonfinite;
  std::optional<Divergence> first_divergence;
};

struct ComparisonOptions {
  NumericsLimits limits;
  std::int64_t record_bytes = std::int64_t{1} << 30;  // for what FP32 computes
  /// Called around every op before the comparison looks at it: tests damage a tensor there.
  OpObserver* intruder = nullptr;
};

/// Runs `window` as the recipe's next update, with FP32 beside it. Both executions are of the same model and batch;
/// FP32 need not be initialized, its state is overwritten.
UpdateComparison compare_update(Execution& recipe, Execution& fp32, const Window& window,
                                const ComparisonOptions& options);

/// State of another execution, as numbers; the loss scale becomes 1.
void take_over_state(const Execution& from, Execution& fp32);

/// Runs one update and looks only for the first value that is not finite.
std::optional<Place> find_first_nonfinite(Execution& execution, const Window& window);

}  // namespace mixroof
