// One tensor in training: its gradient checked, the update decided, applied or skipped, the loss scale advanced, by the
// kernels and in the order of an update.
#pragma once

#include "harness/cli/explain/workbench.h"
#include "kernels/adamw/adamw.h"
#include "kernels/control.h"
#include "kernels/update_control/update_control.h"

namespace mixroof::cli {

/// AdamW without memory, epsilon and decay: moment 1 is the gradient as it is applied, unscaled and clipped, and each
/// step is exactly the learning rate against the gradient's sign.
inline constexpr AdamwConstants kSignSteps{.beta1 = 0, .beta2 = 0, .eps = 0, .weight_decay = 0};

struct UpdateSetup {
  Format weights = Format::fp32;
  bool master = false;  // keep an FP32 master of 16-bit weights
  Format moments = Format::fp32;
  AdamwConstants optimizer = kSignSteps;
  UpdateConstants update = {};  // its betas are taken from `optimizer`
  double loss_scale = 1;
};

class TensorUpdate {
 public:
  TensorUpdate(Workbench& bench, const UpdateSetup& setup, const Values& weights);

  /// One window with this gradient of the scaled loss, accumulated in FP32.
  void window(const Values& scaled_grad, double effective_tokens = 1);
  double operator[](Slot s) const { return slot(control.data(), s); }

  /// State, as the formats hold it; `master` is empty without one.
  Values weights, master, moment1, moment2, control;

 private:
  Problem optimizer_problem() const;
  std::vector<Values> optimizer_operands(const Values& grad) const;

  Workbench& bench_;
  UpdateSetup setup_;
};

}  // namespace mixroof::cli
