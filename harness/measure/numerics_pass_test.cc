#include "harness/measure/numerics_pass.h"

#include <gtest/gtest.h>

#include <cmath>

#include "harness/measure/numerics_document.h"

namespace mixroof {
namespace {

TEST(FirstSettledUpdate, IsTheFirstThatWasApplied_AndWithDelayedScalesTheSecondWindow) {
  const Recipe &fp16 = find_recipe("fp16-master"), &fp8 = find_recipe("fp8-hybrid");
  EXPECT_EQ(first_settled_update(fp16, {}, 1, 10), 1);
  EXPECT_EQ(first_settled_update(fp16, {1, 2, 16}, 1, 20), 3);
  EXPECT_EQ(first_settled_update(fp16, {1, 2, 3}, 1, 3), std::nullopt);
  EXPECT_EQ(first_settled_update(fp8, {}, 1, 10), 2);
  EXPECT_EQ(first_settled_update(fp8, {2}, 1, 10), 3);
  EXPECT_EQ(first_settled_update(fp8, {}, 1, 1), 1) << "one update is better than none";
  EXPECT_EQ(first_settled_update(fp16, {}, 41, 50), 41) << "training that was loaded goes on";
}

class NumericsPassTest : public testing::Test {
 protected:
  NumericsPassTest() {
    config.model = find_model("gpt2-tiny");
    config.batch = {.micro_batch = 2, .seq = 16, .micro_batches = 2};
    config.updates = 8;
    config.seed = 3;
    config.lower.update.learning_rate = 3e-4;
  }
  /// The steps of these recipes with the pass beside them, as a session does it.
  void run(std::string_view recipes, double budget_s = 60) {
    config.recipes = parse_recipes(recipes);
    pass.emplace(config, data, *backend, events, budget_s);
    const StepsOptions options{
        .budget_s = 60, .traced_updates = 1, .at_end = [&](const StepRecord& step, Execution& execution) {
          pass->observe_end(step, execution);
        }};
    steps = run_steps(config, data, *backend, options, events, [](const std::vector<StepRecord>&) {});
    for (const StepRecord& step : steps) pass->observe_start(step);
    for (const StepRecord& step : steps) pass->locate_nonfinite(step);
  }
  const NumericEvidence& evidence(std::size_t step) const { return *pass->find(*steps[step].recipe); }

  RunConfig config;
  RunEvents events;
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  const TokenData data = TokenData::synthetic(256, 3);
  std::optional<NumericsPass> pass;
  std::vector<StepRecord> steps;
};

TEST_F(NumericsPassTest, ComparesTheStartAndTheEndOfEveryRecipe) {
  run("fp32,bf16-master,fp8-hybrid");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    SCOPED_TRACE(steps[i].recipe->name);
    const NumericEvidence& e = evidence(i);
    ASSERT_EQ(e.comparisons.size(), 2u) << e.not_compared;
    EXPECT_EQ(e.comparisons[0].update, steps[i].recipe->uses_fp8() ? 2 : 1);
    EXPECT_EQ(e.comparisons[1].update, 8 + 1 + 1);  // after one traced update
    EXPECT_FALSE(e.first_nonfinite);
    EXPECT_EQ(e.fp8.has_value(), steps[i].recipe->uses_fp8());
  }
  EXPECT_EQ(evidence(0).comparisons[1].grad.rel_l2(), 0);
  EXPECT_GT(evidence(1).comparisons[0].grad.rel_l2(), 1e-4);
  EXPECT_GT(evidence(2).comparisons[0].grad.rel_l2(), evidence(1).comparisons[0].grad.rel_l2());
}

TEST_F(NumericsPassTest, AFirstOverflowIsFoundAgain_WhereItHappened) {
  config.initial_loss_scale = 0x1p40;
  config.lower.update.ceiling = 0x1p50;
  config.updates = 40;
  run("fp16-master");
  ASSERT_FALSE(steps[0].overflowed.empty());
  EXPECT_EQ(steps[0].overflowed.front(), 1);
  EXPECT_EQ(static_cast<std::int64_t>(steps[0].overflowed.size()), steps[0].last.skipped);
  const NumericEvidence& e = evidence(0);
  ASSERT_TRUE(e.first_nonfinite) << e.nonfinite_reason;
  EXPECT_EQ(e.first_nonfinite->update, 1);
  EXPECT_EQ(e.first_nonfinite->op, "cross_entropy");
  ASSERT_EQ(e.comparisons.size(), 2u);
  EXPECT_EQ(e.comparisons[0].update, steps[0].last.skipped + 1) << "the first that was applied";
  EXPECT_EQ(e.comparisons[0].loss_scale, std::ldexp(1.0, 40 - static_cast<int>(steps[0].last.skipped)));
}

TEST_F(NumericsPassTest, AStateThatIsNotFinite_IsLocated) {
  config.lower.update.learning_rate = 1e38;
  run("fp32,bf16-master");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    ASSERT_EQ(steps[i].status, Status::failed);
    const NumericEvidence& e = evidence(i);
    ASSERT_TRUE(e.first_nonfinite) << e.nonfinite_reason;
    EXPECT_LE(e.first_nonfinite->update, steps[i].last.attempted);
    ASSERT_FALSE(e.comparisons.empty());
    EXPECT_EQ(e.comparisons.back().update, steps[i].last.attempted) << "the update that broke it is compared";
    const NumericFigures figures = figures_of(steps[i], {}, &e);
    EXPECT_EQ(judge(figures, *steps[i].recipe, limits_for(*steps[i].recipe, 2)).kind, VerdictKind::diverged);
  }
}

TEST_F(NumericsPassTest, WithoutBudget_EachRecipeIsComparedOnce_AndTheRestHasAReason) {
  run("fp32,bf16-master,fp16-master", 0);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(evidence(i).comparisons.size(), 1u);
    EXPECT_NE(evidence(i).not_compared.find("--budget"), std::string::npos);
  }
}

TEST_F(NumericsPassTest, Figures_AreTheWorstOfTheComparedUpdates) {
  NumericEvidence e;
  for (const double error : {0.1, 0.3, 0.2}) {
    UpdateComparison c;
    c.grad.add(1 + error, 1);
    c.absorbed.updates = 10;
    c.absorbed.absorbed = static_cast<std::int64_t>(10 * error + 0.5);
    e.comparisons.push_back(c);
  }
  StepRecord step;
  step.recipe = &find_recipe("bf16-master");
  step.loss = {5, 4, 3, 2, 2, 2, 1, 3};
  const Trajectory fp32{.loss = {5, 4, 3, 2, 2, 2, 1, 1}, .grad_norm = {}};
  const NumericFigures figures = figures_of(step, fp32, &e);
  EXPECT_NEAR(*figures.grad_rel_l2, 0.3, 1e-12);
  EXPECT_DOUBLE_EQ(*figures.absorbed, 0.3);
  EXPECT_DOUBLE_EQ(*figures.loss_rel_diff, 1);  // the last two: 4 against 2
  EXPECT_EQ(figures.last_quarter, 2);
  EXPECT_FALSE(figures_of(step, {}, nullptr).grad_rel_l2);
}

TEST(LateLossDifference, IsOfTheLastQuarter) {
  EXPECT_DOUBLE_EQ(*late_loss_difference({9, 9, 9, 1.1}, {1, 1, 1, 1}), 1.1 - 1);
  EXPECT_DOUBLE_EQ(*late_loss_difference({0.5}, {1}), 0.5) << "without sign, at least one update";
  EXPECT_TRUE(std::isnan(*late_loss_difference({1, NAN}, {1, 1})));
  EXPECT_FALSE(late_loss_difference({1}, {}));
}

TEST(LateLossDifference, AtEqualAppliedUpdates_LooksBackByTheSkippedOnes) {
  // Updates 3 and 6 of 8 (from 0: 2 and 5) were skipped: the last two losses, 3 and 2, come after as many applied
  // updates as the reference's fifth and sixth.
  const std::vector<double> loss = {8, 7, 6, 6, 5, 4, 3, 2}, reference = {8, 7, 6, 5, 3, 2, 1, 1};
  EXPECT_DOUBLE_EQ(*late_loss_difference(loss, reference), 5.0 / 2 - 1);
  EXPECT_DOUBLE_EQ(*late_loss_difference_at_equal_applied(loss, reference, {2, 5}), 0);
  // The skipped update itself had not lost anything yet when its loss was taken.
  EXPECT_DOUBLE_EQ(*late_loss_difference_at_equal_applied(loss, reference, {7}), 5.0 / 2 - 1);
}

}  // namespace
}  // namespace mixroof
