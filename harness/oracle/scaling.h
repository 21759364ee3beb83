// Group scaling: loss scale, clipping, denominators and clocks, by the product's kernels.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/oracle/comparison.h"
#include "harness/oracle/entry.h"
#include "kernels/control.h"
#include "kernels/update_control/update_control.h"

namespace mixroof {

/// The two ops around the optimizer, window after window, on one control tensor.
class ControlLoop {
 public:
  ControlLoop(Backend& backend, const UpdateConstants& constants, double initial_scale);
  /// `advance` runs in place of the backend's own (a mutant of a test).
  void replace_advance(const Plan& advance) { replaced_ = &advance; }

  void decide();
  void advance();
  /// One window without gradients of its own: `grad_square_sum` is that of the scaled gradients.
  void window(bool found_inf, double effective_tokens = 1, double grad_square_sum = 1);

  double& operator[](Slot s) { return slot(control_.data(), s); }
  std::vector<double>& control() { return control_; }

 private:
  void run(const Problem& problem, const Plan& plan);

  Backend& backend_;
  Problem decide_problem_, advance_problem_;
  std::unique_ptr<Plan> decide_, advance_;
  const Plan* replaced_ = nullptr;
  std::vector<double> control_;
};

/// A recorded trace of the dynamic loss scale: every recorded scale, tracker and count of skips, and the totals at its
/// end. PyTorch's scaler has neither floor nor ceiling; a growth that would give infinity is not taken.
UpdateConstants constants_of_trace(const OracleEntry& trace);
Comparison check_scale_trace(Backend& backend, const OracleEntry& trace, const Plan* advance = nullptr);

/// scaling/examples.json: `expected` must come out and `wrong` must not.
void check_scaling_examples(OracleSession& session);

}  // namespace mixroof
