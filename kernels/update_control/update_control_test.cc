// Mutants that these tests catch: clipping before unscaling. Those of the loss scale are caught by its recorded traces
// (harness/oracle/scaling_test.cc).
#include "kernels/update_control/update_control.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/kernel_test.h"
#include "kernels/update_control/rules.h"

namespace mixroof {
namespace {

/// The two ops around the optimizer, on one control tensor.
class Updates {
 public:
  Updates(Backend& backend, const UpdateConstants& constants, double initial_scale)
      : backend_(backend),
        decide_(backend.prepare(decide_problem(constants))),
        advance_(backend.prepare(advance_problem(constants))),
        control_(control_with({{Slot::loss_scale, initial_scale}})) {}

  void window(bool found_inf, double effective_tokens = 1000, double grad_square_sum = 1) {
    (*this)[Slot::found_inf] = found_inf;
    (*this)[Slot::effective_tokens] = effective_tokens;
    (*this)[Slot::grad_square_sum] = grad_square_sum;
    run(*decide_);
    run(*advance_);
  }
  double& operator[](Slot s) { return slot(control_.data(), s); }
  double scale() { return (*this)[Slot::loss_scale]; }

 private:
  void run(const Plan& plan) {
    const std::vector<void*> operands = {control_.data()};
    backend_.run(plan, operands, nullptr);
  }

  Backend& backend_;
  std::unique_ptr<Plan> decide_, advance_;
  std::vector<double> control_;
};

class UpdateControl : public testing::Test {
 protected:
  Updates updates(const UpdateConstants& constants, double initial_scale = 65536) {
    return Updates(*backend_, constants, initial_scale);
  }
  static UpdateConstants dynamic(double growth_interval = 2000) {
    return {.dynamic_scale = true, .growth_interval = growth_interval};
  }
  /// Scales after windows of "ok" (0) and overflow (1).
  static std::vector<double> scales(Updates& u, const std::vector<bool>& overflows) {
    std::vector<double> scales;
    for (const bool overflow : overflows) {
      u.window(overflow);
      scales.push_back(u.scale());
    }
    return scales;
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend(1);
};

TEST_F(UpdateControl, EveryCase_AgreesWithTheReference) { expect_all_cases_pass(update_control_kernel(), *backend_); }

TEST(UpdateControlCost, ReadsAndWritesTheControlTensorOnce) {
  const Cost cost = update_control_kernel().cost(decide_problem({}));
  EXPECT_EQ(cost.total_useful_flops(), 0);
  EXPECT_EQ(cost.bytes_read, 32 * 8);
  EXPECT_EQ(cost.bytes_written, 32 * 8);
}

TEST(UpdateControlProblem, KeepsItsConstants) {
  const UpdateConstants c =
      update_constants(advance_problem({.schedule = Schedule::cosine, .warmup = 7, .backoff = 0.75}));
  EXPECT_EQ(c.schedule, Schedule::cosine);
  EXPECT_EQ(c.warmup, 7);
  EXPECT_EQ(c.backoff, 0.75);
}

TEST(LearningRate, FollowsItsSchedule) {
  UpdateConstants c{.learning_rate = 8, .warmup = 4, .decay_updates = 12};
  EXPECT_EQ(scheduled_learning_rate(c, 1), 2);  // 1/4 of the peak
  EXPECT_EQ(scheduled_learning_rate(c, 4), 8);
  EXPECT_EQ(scheduled_learning_rate(c, 100), 8);
  c.schedule = Schedule::linear;
  EXPECT_EQ(scheduled_learning_rate(c, 4), 8);
  EXPECT_EQ(scheduled_learning_rate(c, 6), 6);  // 2 of 8 updates of the decay are over
  EXPECT_EQ(scheduled_learning_rate(c, 12), 0);
  EXPECT_EQ(scheduled_learning_rate(c, 13), 0);
  c.schedule = Schedule::cosine;
  EXPECT_DOUBLE_EQ(scheduled_learning_rate(c, 8), 4);  // (1 + cos(π/2)) / 2
  EXPECT_DOUBLE_EQ(scheduled_learning_rate(c, 6), 8 * (1 + std::numbers::sqrt2 / 2) / 2);
  EXPECT_EQ(scheduled_learning_rate(c, 12), 0);
}

TEST(LearningRate, WithoutWarmup_StartsAtThePeak) {
  EXPECT_EQ(scheduled_learning_rate({.learning_rate = 8}, 1), 8);
  EXPECT_EQ(scheduled_learning_rate({.learning_rate = 8, .schedule = Schedule::linear, .decay_updates = 4}, 1), 6);
}

TEST_F(UpdateControl, LearningRateAndBiasCorrection_FollowAppliedUpdates) {
  Updates u = updates({.beta1 = 0.9, .beta2 = 0.95, .learning_rate = 8, .warmup = 4});
  u.window(false);
  u.window(true);  // skipped: neither moves
  EXPECT_EQ(u[Slot::learning_rate], 2);
  EXPECT_DOUBLE_EQ(u[Slot::bias_correction1], 0.1);
  u.window(false);
  EXPECT_EQ(u[Slot::learning_rate], 4);
  EXPECT_DOUBLE_EQ(u[Slot::bias_correction1], 1 - 0.81);
  EXPECT_DOUBLE_EQ(u[Slot::bias_correction2], 1 - 0.9025);
}

// cases.md LS-1
TEST_F(UpdateControl, LS1_TheScale_StopsAtItsCeiling) {
  Updates u = updates(dynamic(1));
  for (int i = 0; i < 8; ++i) u.window(false);
  EXPECT_EQ(u.scale(), 16777216);  // 2^16 · 2^8
  for (int i = 8; i < 150; ++i) u.window(false);
  EXPECT_EQ(u.scale(), 16777216);
  EXPECT_EQ(u[Slot::growths], 8);
  EXPECT_EQ(u[Slot::updates_applied], 150);
  EXPECT_EQ(u[Slot::updates_skipped], 0);
}

// cases.md LS-2
TEST_F(UpdateControl, LS2_OverflowAtTheFloor_IsReportedAndTheScaleStays) {
  Updates u = updates(dynamic());
  for (int i = 0; i < 16; ++i) u.window(true);
  EXPECT_EQ(u.scale(), 1);
  EXPECT_EQ(u[Slot::scale_exhausted], 0);
  u.window(true);
  EXPECT_EQ(u.scale(), 1);
  EXPECT_EQ(u[Slot::scale_exhausted], 1);
  EXPECT_EQ(u[Slot::backoffs], 16);
}

// cases.md LS-3
TEST_F(UpdateControl, LS3_OneOverflowInAWindow_BacksOffOnceAndTheNextWindowIsClean) {
  Updates u = updates(dynamic());
  EXPECT_EQ(scales(u, {true, false, false, false}), (std::vector<double>{32768, 32768, 32768, 32768}));
  EXPECT_EQ(u[Slot::updates_skipped], 1);
  EXPECT_EQ(u[Slot::updates_applied], 3);
  EXPECT_EQ(u[Slot::found_inf], 0);
}

TEST_F(UpdateControl, LS3_Pattern_OkOkOkBadOkOkOkOkBadOk) {
  Updates u = updates(dynamic(4));
  EXPECT_EQ(scales(u, {false, false, false, true, false, false, false, false, true, false}),
            (std::vector<double>{65536, 65536, 65536, 32768, 32768, 32768, 32768, 65536, 32768, 32768}));
  EXPECT_EQ(u[Slot::updates_applied], 8);
  EXPECT_EQ(u[Slot::updates_skipped], 2);
}

// cases.md LS-4: the norm of the unscaled gradients does not depend on the scale. True norm 0.5, limit 1.
TEST_F(UpdateControl, LS4_TheNorm_DoesNotDependOnTheScale) {
  for (const double scale : {65536.0, 256.0}) {
    Updates u = updates({.max_norm = 1}, scale);
    u.window(false, 1000, 0.25 * scale * scale);  // Σ g² of the scaled gradients
    EXPECT_EQ(u[Slot::grad_norm], 0.5);
    EXPECT_EQ(u[Slot::clip_coefficient], 1);
    EXPECT_EQ(u[Slot::grad_factor], 1 / scale);  // clip first: 1.526e-5 / scale; unscaled twice: 1 / scale²
  }
}

TEST_F(UpdateControl, LS5_ANormOf1e21_IsClippedTo1) {
  Updates u = updates({.max_norm = 1}, 1);
  u.window(false, 1000, 1e42);
  EXPECT_DOUBLE_EQ(u[Slot::grad_norm], 1e21);
  EXPECT_DOUBLE_EQ(u[Slot::grad_factor], 1e-21);
  u.window(true, 1000, std::numeric_limits<double>::infinity());
  EXPECT_EQ(u[Slot::apply], 0);
  EXPECT_EQ(u[Slot::updates_skipped], 1);
}

TEST_F(UpdateControl, ANormOfZero_IsNotClipped) {
  Updates u = updates({.max_norm = 1}, 1024);
  u.window(false, 1000, 0);
  EXPECT_EQ(u[Slot::clip_coefficient], 1);
  EXPECT_EQ(u[Slot::apply], 1);
}

TEST_F(UpdateControl, LS6_AWindowWithoutTokens_IsSkippedAndLeavesTheScale) {  // cases.md LS-6, the empty window
  Updates u = updates(dynamic(2));
  u.window(false);
  u.window(false, /*effective_tokens=*/0);
  EXPECT_EQ(u[Slot::growth_tracker], 1);
  EXPECT_EQ(u[Slot::updates_skipped], 1);
  EXPECT_EQ(u[Slot::tokens_consumed], 1000);
  EXPECT_EQ(u.scale(), 65536);
  u.window(false);
  EXPECT_EQ(u.scale(), 131072);
}

TEST_F(UpdateControl, AStaticScale_NeverMoves_AndOverflowsAreSkipped) {
  Updates u = updates({.growth_interval = 1}, 1024);
  EXPECT_EQ(scales(u, {false, true, false, true}), std::vector<double>(4, 1024));
  EXPECT_EQ(u[Slot::updates_applied], 2);
  EXPECT_EQ(u[Slot::updates_skipped], 2);
  EXPECT_EQ(u[Slot::scale_exhausted], 0);
}

TEST_F(UpdateControl, FoundInf_IsClearedForTheNextWindow) {
  const Problem problem = advance_problem(dynamic());
  std::vector<double> control =
      control_with({{Slot::found_inf, 1}, {Slot::effective_tokens, 1}, {Slot::loss_scale, 8}});
  run_kernel(*backend_, update_control_kernel(), problem, {control.data()});
  EXPECT_EQ(slot(control.data(), Slot::found_inf), 0);
}

TEST_F(UpdateControl, Mutant_ClippedBeforeUnscaling_IsCaught) {
  const Mutant clip_first = [](const Launch& launch) {
    auto* control = static_cast<double*>(launch.operands[0]);
    const UpdateConstants constants{.max_norm = 1.0};
    decide(constants, control);
    const double scaled_norm = std::sqrt(slot(control, Slot::grad_square_sum));
    slot(control, Slot::clip_coefficient) = std::min(1.0, constants.max_norm / scaled_norm);
    slot(control, Slot::grad_factor) = slot(control, Slot::clip_coefficient) / slot(control, Slot::loss_scale);
  };
  EXPECT_FALSE(check_mutant(*backend_, update_control_kernel(), decide_problem({.max_norm = 1.0}), clip_first).pass);
}

}  // namespace
}  // namespace mixroof
