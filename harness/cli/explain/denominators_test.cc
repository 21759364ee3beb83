#include "harness/cli/explain/denominators.h"

#include <gtest/gtest.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include "harness/execute/oracle_test_support.h"

namespace mixroof::cli {
namespace {

TEST(ExplainDenominators, LS6_UnequalMicroBatches_GiveTheMeanOverTokens) {
  Workbench bench;
  const WindowMeans means = average_window(bench, {{8, 1, 0.5}, {2, 4, -1}});
  EXPECT_NEAR(means.loss, 1.6, 1e-6);
  EXPECT_EQ(means.mean_of_means, 2.5);
  EXPECT_NEAR(means.gradient, 0.2, 1e-7);
  EXPECT_TRUE(means.applied);
}

TEST(ExplainDenominators, LS6_AWindowWithoutTokens_IsSkippedWithoutADivisionByZero) {
  Workbench bench;
  const WindowMeans means = average_window(bench, {{0, 0, 0}, {0, 0, 0}});
  EXPECT_EQ(means.loss_sum, 0);
  EXPECT_EQ(means.gradient, 0);
  EXPECT_TRUE(std::isnan(means.loss));  // "none" for a reader
  EXPECT_FALSE(means.applied);
}

TEST(ExplainDenominators, AShorterLastWindow_IsDividedByItsOwnTokens) {
  Workbench bench;
  const WindowMeans full = average_window(bench, {4, {4, 2, 1}}), last = average_window(bench, {3, {4, 2, 1}});
  EXPECT_EQ(last.effective_tokens, 12);
  EXPECT_NEAR(last.loss, full.loss, 1e-6);
  EXPECT_NEAR(last.gradient, 1, 1e-6);
  EXPECT_NEAR(last.loss_sum / 16, 1.5, 1e-6);  // what a fixed divisor gives
}

TEST(ExplainDenominators, LS6_Examples_EqualTheOracle) {
  const auto oracle = open_oracle("scaling/examples");
  if (!oracle) GTEST_SKIP() << kNoOracle;
  Workbench bench;
  int compared = 0;
  for (const auto& example : oracle->manifest().at("examples")) {
    const auto& inputs = example.at("inputs");
    if (!inputs.contains("effective_tokens")) continue;
    SCOPED_TRACE(example.at("id").get<std::string>());
    std::vector<MicroBatchMeans> window;
    for (std::size_t i = 0; i < inputs.at("effective_tokens").size(); ++i) {
      const auto& loss = inputs.at("mean_loss").at(i);
      window.push_back({inputs.at("effective_tokens").at(i).get<std::int64_t>(), loss.is_null() ? 0 : loss.get<double>(),
                        inputs.at("mean_gradient").at(i).get<double>()});
    }
    const WindowMeans means = average_window(bench, window);
    const auto& expected = example.at("expected");
    EXPECT_EQ(means.effective_tokens, expected.at("effective_tokens").get<double>());
    EXPECT_NEAR(means.loss, expected.at("loss").get<double>(), 1e-6 * means.loss);
    EXPECT_NEAR(means.gradient, expected.at("gradient").get<double>(), 1e-6);
    EXPECT_NEAR(means.mean_of_means, example.at("wrong").at("mean_of_means").get<double>(), 1e-12);
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace mixroof::cli
