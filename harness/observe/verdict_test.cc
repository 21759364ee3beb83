#include "harness/observe/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mixroof {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// A healthy recipe of six layers.
NumericFigures healthy() {
  NumericFigures f;
  f.updates = 200;
  f.overflows = 4;
  f.last_quarter = 50;
  f.loss_rel_diff = 0.003;
  f.grad_rel_l2 = 0.001;
  f.grad_cosine = 0.999999;
  f.update_rel_l2 = 0.03;
  f.update_rms_over_lr = 0.5;
  f.adamw_step_bound = 1.17;
  f.underflow_felt = f.subnormal = f.moment2_underflow = f.absorbed = 0;
  return f;
}

Verdict judged(const NumericFigures& figures, std::string_view recipe) {
  return judge(figures, find_recipe(recipe), limits_for(find_recipe(recipe), 6));
}

TEST(NumericsLimits, AreTwiceTheYardsticks_GrowWithDepth_AndAreCapped) {
  const NumericsLimits two = limits_for(find_recipe("bf16-master"), 2),
                       eight = limits_for(find_recipe("bf16-master"), 8);
  EXPECT_DOUBLE_EQ(two.grad_rel_l2, 2 * 0.0223);
  EXPECT_DOUBLE_EQ(eight.grad_rel_l2, 2 * two.grad_rel_l2);                   // √(8/2)
  EXPECT_DOUBLE_EQ(eight.update_rel_l2, std::sqrt(2.0) * two.update_rel_l2);  // the root of that
  EXPECT_DOUBLE_EQ(two.grad_cosine, 1 - two.grad_rel_l2 * two.grad_rel_l2 / 2);
  EXPECT_EQ(limits_for(find_recipe("bf16-master"), 1).grad_rel_l2, two.grad_rel_l2);
  EXPECT_LT(limits_for(find_recipe("fp16-master"), 6).grad_rel_l2,
            limits_for(find_recipe("bf16-master"), 6).grad_rel_l2);
  const NumericsLimits fp8 = limits_for(find_recipe("fp8-hybrid"), 96);
  EXPECT_EQ(fp8.grad_rel_l2, 0.5);
  EXPECT_EQ(fp8.update_rel_l2, 0.9);
  EXPECT_EQ(fp8.tensor_rel_l2, 1);
}

TEST(NumericsLimits, EveryRecipeHasSome_AndADiagnosticOneThoseOfItsFormats) {
  for (const Recipe& recipe : all_recipes()) {
    const NumericsLimits limits = limits_for(recipe, 6);
    EXPECT_GT(limits.grad_rel_l2, 0) << recipe.name;
    EXPECT_LT(limits.grad_rel_l2, limits.diverged_grad_rel_l2) << recipe.name;
    EXPECT_GT(limits.grad_cosine, limits.diverged_grad_cosine) << recipe.name;
  }
  EXPECT_EQ(limits_for(find_recipe("bf16-pure"), 6).grad_rel_l2, limits_for(find_recipe("bf16-master"), 6).grad_rel_l2);
}

TEST(Verdict, WithinLimits_IsOkWithoutAReason) {
  const Verdict verdict = judged(healthy(), "fp16-master");
  EXPECT_EQ(verdict.kind, VerdictKind::ok);
  EXPECT_EQ(verdict.reason, "");
}

TEST(Verdict, EachLoss_IsNamedWithItsFigureAndItsLimit) {
  const auto expect = [](std::string_view recipe, VerdictKind kind, auto change, const auto& reason) {
    NumericFigures figures = healthy();
    change(figures);
    const Verdict verdict = judged(figures, recipe);
    EXPECT_EQ(verdict.kind, kind) << verdict.reason;
    EXPECT_THAT(verdict.reason, reason);
    EXPECT_THAT(verdict.reason, Not(HasSubstr("\n")));
  };
  using F = NumericFigures;
  expect(
      "fp16-master-unscaled", VerdictKind::degraded, [](F& f) { f.underflow_felt = 0.3; },
      AllOf(StartsWith("underflow: 30 %"), HasSubstr("fp16"), HasSubstr("limit 1 %")));
  expect(
      "fp16-master-unscaled", VerdictKind::degraded,
      [](F& f) {
        f.grad_rel_l2 = 0.1;
        f.subnormal = 0.9;
      },
      AllOf(StartsWith("underflow: 90 %"), HasSubstr("0.1 off")));
  expect(
      "bf16-master", VerdictKind::degraded, [](F& f) { f.grad_rel_l2 = 0.1; },
      AllOf(StartsWith("divergence from fp32"), HasSubstr("0.1 off"), HasSubstr("0.0772")));  // 2 · 0.0223 · √3
  expect(
      "bf16-nomaster", VerdictKind::degraded, [](F& f) { f.absorbed = 0.4; },
      AllOf(StartsWith("absorption: 40 %"), HasSubstr("bf16 parameters"), HasSubstr("limit 1 %")));
  expect(
      "fp16-pure", VerdictKind::degraded, [](F& f) { f.moment2_underflow = 0.6; },
      AllOf(StartsWith("underflow: 60 % of the second moments"), Not(HasSubstr("explode"))));
  expect(
      "fp16-pure", VerdictKind::diverged,
      [](F& f) {
        f.moment2_underflow = 1;
        f.update_rms_over_lr = 4;
      },
      AllOf(HasSubstr("explode"), HasSubstr("4 learning rates"), HasSubstr("1.17")));
  expect(
      "fp16-pure", VerdictKind::diverged,
      [](F& f) {
        f.moment2_underflow = 1;
        f.update_rms_over_lr = 4;
        f.scale_exhausted = f.loss_nonfinite = true;
      },
      AllOf(StartsWith("underflow"), HasSubstr("; overflow: gradients were not finite at the floor"),
            Not(HasSubstr("loss is"))));
  expect(
      "fp8-hybrid", VerdictKind::degraded, [](F& f) { f.saturated = 0.02; },
      StartsWith("overflow: 2 % of the FP8 values"));
  expect(
      "fp16-master", VerdictKind::degraded, [](F& f) { f.last_quarter_overflows = 10; },
      StartsWith("overflow: 10 of the last 50 updates"));
  expect(
      "fp16-master", VerdictKind::degraded, [](F& f) { f.loss_rel_diff = 0.13; },
      AllOf(HasSubstr("loss of the last quarter is 13 % off"), HasSubstr("4 of 200 updates were skipped")));
  expect(
      "bf16-master", VerdictKind::diverged, [](F& f) { f.loss_rel_diff = 0.3; }, HasSubstr("30 %"));
  expect(
      "bf16-master", VerdictKind::diverged, [](F& f) { f.grad_cosine = 0.1; }, HasSubstr("cosine is 0.1"));
  expect(
      "bf16-master", VerdictKind::diverged, [](F& f) { f.update_rel_l2 = 3; }, HasSubstr("one update is 3 off"));
  expect(
      "fp16-master", VerdictKind::diverged, [](F& f) { f.state_nonfinite = true; }, HasSubstr("parameter or moment"));
  expect(
      "fp16-master", VerdictKind::diverged, [](F& f) { f.scale_exhausted = true; }, HasSubstr("floor"));
  expect(
      "fp16-master", VerdictKind::diverged, [](F& f) { f.overflows = 200; }, HasSubstr("any of 200 updates"));
  expect(
      "bf16-master", VerdictKind::diverged, [](F& f) { f.loss_nonfinite = true; }, HasSubstr("loss is not finite"));
}

TEST(Verdict, ALagOfSkippedUpdates_IsNoDivergence) {
  NumericFigures figures = healthy();
  figures.loss_rel_diff = 0.3;
  figures.loss_rel_diff_applied = 0.04;
  const Verdict lag = judged(figures, "fp16-master");
  EXPECT_EQ(lag.kind, VerdictKind::degraded);
  EXPECT_THAT(lag.reason, AllOf(HasSubstr("30 % off"), HasSubstr("at equal applied updates it is 4 % off")));
  figures.loss_rel_diff_applied = 0.28;
  EXPECT_EQ(judged(figures, "fp16-master").kind, VerdictKind::diverged);
}

TEST(Verdict, NanIsBeyondEveryLimit) {
  NumericFigures figures = healthy();
  figures.grad_rel_l2 = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(judged(figures, "bf16-master").kind, VerdictKind::diverged);
  figures = healthy();
  figures.grad_cosine = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(judged(figures, "bf16-master").kind, VerdictKind::diverged);
}

TEST(Verdict, TheGravestLossComesFirst_AndAtMostThreeAreNamed) {
  NumericFigures figures = healthy();
  figures.absorbed = 0.5;
  figures.underflow_felt = 0.5;
  figures.moment2_underflow = 0.5;
  figures.loss_rel_diff = 0.5;
  const Verdict verdict = judged(figures, "fp16-pure");
  EXPECT_EQ(verdict.kind, VerdictKind::diverged);
  EXPECT_THAT(verdict.reason, StartsWith("divergence from fp32: the loss"));
  EXPECT_EQ(std::count(verdict.reason.begin(), verdict.reason.end(), ';'), 2);
}

TEST(Verdict, UnknownFigures_AreNotJudged) { EXPECT_EQ(judged(NumericFigures{}, "fp8-hybrid").kind, VerdictKind::ok); }

TEST(Verdict, OneSkippedUpdateAtTheEnd_IsTheScalesOwnSearch) {
  NumericFigures figures = healthy();
  figures.last_quarter = 6;
  figures.last_quarter_overflows = 1;
  EXPECT_EQ(judged(figures, "fp16-master").kind, VerdictKind::ok);
}

}  // namespace
}  // namespace mixroof
