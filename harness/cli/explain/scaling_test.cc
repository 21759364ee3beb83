#include "harness/cli/explain/scaling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "harness/execute/oracle_test_support.h"
#include "harness/numeric/codec.h"

namespace mixroof::cli {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(ExplainScaling, AGradientOf2ToMinus26_SurvivesOnlyScaledBeforeTheCast) {
  Workbench bench;
  const ScaledGradient g = scale_gradient(bench, 0x1p-26, 4096);
  EXPECT_EQ(g.scaled_then_cast, 0x1p-14);
  EXPECT_EQ(g.applied, 0x1p-26);
  EXPECT_EQ(g.cast_then_scaled, 0);
  EXPECT_EQ(g.unscaled_in_fp16, 0);
  EXPECT_EQ(loss_gradient(bench, 1), 0);
  EXPECT_EQ(loss_gradient(bench, 4096), 0x1p-14);
}

TEST(ExplainScaling, Fp16Gradients_EqualTheOracle) {
  const auto oracle = open_oracle("formats/absorption");
  if (!oracle) GTEST_SKIP() << kNoOracle;
  Workbench bench;
  for (const auto& row : oracle->manifest().at("gradient_underflow_fp16")) {
    const ScaledGradient g = scale_gradient(bench, row.at("gradient").get<double>(), row.at("scale").get<double>());
    EXPECT_EQ(g.scaled_then_cast, decode_fp16(row.at("fp16_bits").get<std::uint16_t>())) << row;
    EXPECT_EQ(g.applied, row.at("unscaled_fp32").get<double>()) << row;
  }
}

TEST(ExplainScaling, LS1_WithACeiling_GrowthStopsAt2To24) {
  Workbench bench;
  const std::vector<bool> clean(150, false);
  UpdateConstants constants{.dynamic_scale = true, .growth_interval = 1};
  const ScaleTrace bounded = trace_scale(bench, constants, 65536, clean);
  EXPECT_LT(bounded.after[6], 16777216);
  EXPECT_EQ(bounded.after[7], 16777216);  // 8 growths
  EXPECT_EQ(bounded.after.back(), 16777216);
  EXPECT_EQ(bounded.growths, 8);
  EXPECT_EQ(bounded.applied, 150);
  EXPECT_EQ(bounded.skipped, 0);
  constants.ceiling = kInf;
  const ScaleTrace unbounded = trace_scale(bench, constants, 65536, clean);
  EXPECT_EQ(unbounded.after[110], 0x1p127);
  EXPECT_EQ(unbounded.after[111], kInf);  // the 112th growth
}

TEST(ExplainScaling, LS2_WithAFloor_The17thOverflowEndsTheRecipe) {
  Workbench bench;
  const std::vector<bool> bad(170, true);
  UpdateConstants constants{.dynamic_scale = true};
  const ScaleTrace bounded = trace_scale(bench, constants, 65536, bad);
  EXPECT_EQ(bounded.after[14], 2);
  EXPECT_EQ(bounded.after[15], 1);  // 16 overflows
  EXPECT_EQ(bounded.exhausted_in, 17);
  EXPECT_EQ(bounded.after.back(), 1);
  EXPECT_EQ(bounded.final_weights, Values{1.0});
  constants.floor = 0;
  const ScaleTrace unbounded = trace_scale(bench, constants, 65536, bad);
  EXPECT_EQ(unbounded.after[143], 0x1p-128);
  EXPECT_TRUE(std::isinf(1.0f / static_cast<float>(unbounded.after[143])));
  EXPECT_GT(unbounded.after[164], 0);
  EXPECT_EQ(unbounded.after[165], 0);
}

TEST(ExplainScaling, LS3_Pattern_OkOkOkBadOkOkOkOkBadOk) {
  Workbench bench;
  const ScaleTrace trace = trace_scale(bench, {.dynamic_scale = true, .growth_interval = 4}, 65536,
                                       {false, false, false, true, false, false, false, false, true, false});
  EXPECT_EQ(trace.after, (Values{65536, 65536, 65536, 32768, 32768, 32768, 32768, 65536, 32768, 32768}));
  EXPECT_EQ(trace.used, (Values{65536, 65536, 65536, 65536, 32768, 32768, 32768, 32768, 65536, 32768}));
  EXPECT_EQ(trace.applied, 8);
  EXPECT_EQ(trace.skipped, 2);
}

TEST(ExplainScaling, LS3_OneOverflowInAWindow_IsOneSkipAndOneBackoff) {
  Workbench bench;
  const WindowOverflow window = overflow_in_window(bench, {1, kInf, 1, 1}, 3);
  EXPECT_EQ(window.scale_after_overflow, 32768);
  EXPECT_EQ(window.weight_after_overflow, 1.0);
  EXPECT_EQ(window.skipped, 1);
  EXPECT_EQ(window.applied, 3);
}

TEST(ExplainScaling, MixedScales_GiveFiveInsteadOfSix) {
  Workbench bench;
  const MixedScales mixed = mix_scales(bench, {2, 4}, {8, 16});
  EXPECT_EQ(mixed.one_scale, 6);
  EXPECT_EQ(mixed.buffer, 80);
  EXPECT_EQ(mixed.unscaled_by_last, 5);
}

TEST(ExplainScaling, Examples_EqualTheOracle) {
  const auto oracle = open_oracle("scaling/examples");
  if (!oracle) GTEST_SKIP() << kNoOracle;
  Workbench bench;
  for (const auto& example : oracle->manifest().at("examples")) {
    const auto &inputs = example.at("inputs"), &expected = example.at("expected");
    if (example.at("id") == "mixed_scales") {
      const MixedScales mixed = mix_scales(bench, inputs.at("gradients").get<Values>(), inputs.at("scales").get<Values>());
      EXPECT_EQ(mixed.one_scale, expected.at("sum").get<double>());
      EXPECT_EQ(mixed.buffer, example.at("wrong").at("buffer").get<double>());
      EXPECT_EQ(mixed.unscaled_by_last, example.at("wrong").at("unscaled_by_last").get<double>());
    }
    if (inputs.contains("found_inf_per_micro_batch")) {
      std::vector<bool> overflows;
      for (const auto& window : inputs.at("found_inf_per_micro_batch")) {
        const auto found = window.get<std::vector<int>>();
        overflows.push_back(std::count(found.begin(), found.end(), 1) > 0);
      }
      const ScaleTrace trace =
          trace_scale(bench, {.dynamic_scale = true, .growth_interval = inputs.at("growth_interval").get<double>()},
                      inputs.at("init_scale").get<double>(), overflows);
      EXPECT_EQ(trace.after, expected.at("scale_after").get<Values>());
    }
  }
}

}  // namespace
}  // namespace mixroof::cli
