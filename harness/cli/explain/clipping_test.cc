#include "harness/cli/explain/clipping.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "harness/execute/oracle_test_support.h"

namespace mixroof::cli {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const Values kHalf = {0.25, 0.25, 0.25, 0.25};  // norm 0.5

TEST(ExplainClipping, LS4_TheNorm_DoesNotDependOnScaleOrMicroBatches) {
  Workbench bench;
  for (const double scale : {65536.0, 256.0})
    for (const int micro_batches : {1, 4}) {
      const Clipped clipped = clip(bench, kHalf, 1, scale, micro_batches);
      EXPECT_EQ(clipped.norm, 0.5);
      EXPECT_EQ(clipped.coefficient, 1);
      EXPECT_EQ(clipped.applied, kHalf);
    }
}

TEST(ExplainClipping, LS4_TheUsualMistakes_ShrinkTheGradient) {
  Workbench bench;
  const Clipped first = clip_before_unscaling(bench, kHalf, 1, 65536);
  EXPECT_EQ(first.norm, 32768);
  EXPECT_EQ(norm(bench, first.applied), 0x1p-16);  // 1.526e-5, 32768 times too small
  EXPECT_EQ(norm(bench, unscale_twice(bench, kHalf, 1, 65536).applied), 0x1p-17);  // 7.63e-6
}

TEST(ExplainClipping, ClippingEachMicroBatch_LosesTheSum) {
  Workbench bench;
  EXPECT_EQ(clip(bench, {bench.accumulate({3, -2}, Format::fp32)}, 1).applied, Values{1.0});
  EXPECT_EQ(clip_each(bench, {3, -2}, 1), 0);
}

TEST(ExplainClipping, LS5_AHundredGradientsOf1e20_HaveNorm1e21AndBecomeTenths) {
  Workbench bench;
  Values gradients(100, 1e20);
  const Clipped clipped = clip(bench, gradients, 1);
  EXPECT_NEAR(clipped.norm, 1e21, 3e13);  // 1e20 is 1.00000002e20 in FP32
  for (const double g : clipped.applied) EXPECT_NEAR(g, 0.1, 1e-8);
  EXPECT_EQ(fp32_norm(bench, gradients), kInf);
  gradients[7] = kInf;
  EXPECT_EQ(clip(bench, gradients, 1).skipped, 1);
  EXPECT_EQ(clip(bench, gradients, 1).applied, Values(100, 0.0));
}

TEST(ExplainClipping, Examples_EqualTheOracle) {
  const auto oracle = open_oracle("scaling/examples");
  if (!oracle) GTEST_SKIP() << kNoOracle;
  Workbench bench;
  const auto expect_close = [](double got, double expected) { EXPECT_NEAR(got, expected, 1e-7 * std::fabs(expected)); };
  int compared = 0;
  for (const auto& example : oracle->manifest().at("examples")) {
    SCOPED_TRACE(example.at("id").get<std::string>());
    const auto &inputs = example.at("inputs"), &expected = example.at("expected");
    const auto wrong = example.value("wrong", nlohmann::json::object());
    if (!inputs.contains("max_norm")) continue;
    const double limit = inputs.at("max_norm").get<double>(), scale = inputs.value("scale", 1.0);
    if (inputs.contains("values")) {
      Values gradient;
      for (int i = 0; i < inputs.at("times").get<int>(); ++i)
        for (const auto& value : inputs.at("values")) gradient.push_back(oracle_number(value));
      expect_close(norm(bench, gradient), oracle_number(expected.at("norm")));
      ++compared;
    } else if (inputs.contains("gradients")) {
      const auto gradients = inputs.at("gradients").get<Values>();
      expect_close(clip(bench, {bench.accumulate(gradients, Format::fp32)}, limit).applied[0],
                   expected.at("clipped").get<double>());
      EXPECT_EQ(clip_each(bench, gradients, limit), wrong.at("clipped").get<double>());
      ++compared;
    } else if (inputs.contains("gradient")) {
      const auto gradient = inputs.at("gradient").get<Values>();
      const Clipped right = clip(bench, gradient, limit, scale);
      expect_close(right.norm, expected.at(expected.contains("norm") ? "norm" : "norm_before").get<double>());
      if (expected.contains("clipped")) {
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          expect_close(right.applied[i], expected.at("clipped").at(i).get<double>());
          expect_close(clip_before_unscaling(bench, gradient, limit, scale).applied[i], wrong.at("clipped").at(i).get<double>());
        }
      } else {
        expect_close(clip_before_unscaling(bench, gradient, limit, scale).norm, wrong.at("norm_if_clipped_scaled").get<double>());
        expect_close(norm(bench, unscale_twice(bench, gradient, limit, scale).applied),
                     wrong.at("norm_if_unscaled_twice").get<double>());
      }
      ++compared;
    }
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace mixroof::cli
