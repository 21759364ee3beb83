// Numbers of `mixroof explain scaling`: FP16 gradients and the loss scale (cases.md LS-1, LS-2, LS-3).
#pragma once

#include "harness/cli/explain/tensor_update.h"

namespace mixroof::cli {

/// One gradient in FP16, scaled before the cast (right), after it, and unscaled in memory again instead of in registers.
struct ScaledGradient {
  double scaled_then_cast, applied;          // what FP16 holds, and what the optimizer applies
  double cast_then_scaled, unscaled_in_fp16;
};
ScaledGradient scale_gradient(Workbench& bench, double gradient, double scale);

/// The gradient of one token's cross entropy over 4096 equal logits in a window of 2^14 tokens, 2^-26, as the
/// cross_entropy kernel writes it in FP16 with this loss scale.
double loss_gradient(Workbench& bench, double scale);

/// The loss scale after each window; `overflows[i]`: window i has an infinite gradient.
struct ScaleTrace {
  Values used, after;
  double applied = 0, skipped = 0, growths = 0;
  int exhausted_in = 0;       // the window, from 1, that overflowed at the floor; 0: none
  Values final_weights;
};
ScaleTrace trace_scale(Workbench& bench, const UpdateConstants& constants, double initial,
                       const std::vector<bool>& overflows);

/// A window whose micro-batches have these gradients, then `clean_windows` clean ones.
struct WindowOverflow {
  double weight_after_overflow;  // from 1
  double scale_after_overflow;
  double applied = 0, skipped = 0;  // at the end
};
WindowOverflow overflow_in_window(Workbench& bench, const Values& gradients, int clean_windows);

/// Two micro-batches with scales of their own in one buffer: the sum with one scale for the window, the buffer with both,
/// and that buffer unscaled by the last scale.
struct MixedScales {
  double one_scale, buffer, unscaled_by_last;
};
MixedScales mix_scales(Workbench& bench, const Values& gradients, const Values& scales);

}  // namespace mixroof::cli
