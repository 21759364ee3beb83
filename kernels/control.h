// The control tensor: the small numbers that change from update to update and therefore live on the device. It is one
// fp64 tensor of kControlSlots values (every value below 2^53 is exact), an operand of each op that needs one of them, so
// that no op takes a changing host argument and an update can be replayed.
#pragma once

#include <cstddef>

namespace mixroof {

enum class Slot : std::size_t {
  // Set by the host with a window's tokens, before its first micro-batch.
  effective_tokens,   // of the whole window
  // Written during a window.
  loss_sum,           // Σ loss over effective tokens, nats, unscaled
  found_inf,          // 1 when a gradient or an FP8 input was not finite
  grad_square_sum,    // Σ g² of the scaled gradients
  // Written by update_control/decide.
  apply,              // 1: this update is applied, 0: skipped
  grad_factor,        // unscale × clip, applied in registers by the optimizer
  grad_norm,          // of the unscaled gradients, before clipping
  clip_coefficient,
  learning_rate,
  bias_correction1,   // 1 - beta1^applied
  bias_correction2,
  scale_used,         // the loss scale of this window
  // State across updates.
  loss_scale,
  growth_tracker,     // applied updates in a row since the last growth or backoff
  updates_attempted,
  updates_applied,
  updates_skipped,
  tokens_consumed,    // effective tokens
  growths,
  backoffs,
  state_nonfinite,    // 1 once an applied update left a parameter or moment that is not finite
  scale_exhausted,    // 1 once a window overflowed at the floor of the scale
  count
};
inline constexpr std::size_t kControlSlots = 32;
static_assert(static_cast<std::size_t>(Slot::count) <= kControlSlots);

inline double& slot(double* control, Slot s) { return control[static_cast<std::size_t>(s)]; }
inline double slot(const double* control, Slot s) { return control[static_cast<std::size_t>(s)]; }

}  // namespace mixroof
