// Numbers of `mixroof explain clipping`: clipping at the global norm and what it must not be mixed up with (cases.md LS-4,
// LS-5).
#pragma once

#include "harness/cli/explain/tensor_update.h"

namespace mixroof::cli {

/// A gradient after clipping: the norm that was compared with the limit, the coefficient, and the gradient as applied.
struct Clipped {
  double norm, coefficient;
  Values applied;
  double skipped = 0;  // 1: a gradient was not finite, nothing was applied
};

/// Accumulated over `micro_batches` equal parts, unscaled once, checked, clipped: the order of an update.
Clipped clip(Workbench& bench, const Values& gradient, double max_norm, double scale = 1, int micro_batches = 1);
/// Mistake: clipped while still scaled, then unscaled.
Clipped clip_before_unscaling(Workbench& bench, const Values& gradient, double max_norm, double scale);
/// Mistake: unscaled in memory, and again in the optimizer.
Clipped unscale_twice(Workbench& bench, const Values& gradient, double max_norm, double scale);
/// Mistake: each micro-batch clipped before it is added; the sum of the clipped gradients.
double clip_each(Workbench& bench, const Values& micro_batch_gradients, double max_norm);

/// Euclidean norm by the product's finite check, whose squares are summed in double; and with squares and sum in FP32.
double norm(Workbench& bench, const Values& values);
double fp32_norm(Workbench& bench, const Values& values);

}  // namespace mixroof::cli
