#include "harness/cli/explain/fp8.h"
#include "harness/cli/explain/fp8_outlier.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mixroof::cli {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kLargest = std::numeric_limits<float>::max();

TEST(ExplainFp8, NUM1_E4m3_SaturatesRoundsTiesToEvenAndKeepsNan) {
  Workbench bench;
  const Values x = {447, 448, 449, 464, 465, 480, 1000, -1000, kInf, -kInf, 0x1p-10, 0x1p-10 * 1.0001, 0x1.8p-9};
  const Quantized q = quantize(bench, Format::fp8_e4m3, x, 1);
  EXPECT_EQ(q.values, (Values{448, 448, 448, 448, 448, 448, 448, -448, 448, -448, 0, 0x1p-9, 0x1p-8}));
  EXPECT_EQ(q.saturated, 8);  // 449, 464, 465, 480, 1000 twice, infinity twice
  EXPECT_EQ(q.flushed, 1);
  EXPECT_TRUE(q.found_inf);
  EXPECT_TRUE(std::isnan(quantize(bench, Format::fp8_e4m3, {kNan}, 1).values[0]));
}

TEST(ExplainFp8, FP8_1_OddMaxima_KeepOrClampTheScale) {
  Workbench bench;
  const auto scale = [&](const Values& amaxes) { return scale_after(bench, Format::fp8_e4m3, amaxes, 16); };
  EXPECT_EQ(scale({0, 0, 0}), 16);
  EXPECT_EQ(scale({kInf}), 16);
  EXPECT_EQ(scale({kNan, 3}), 16);
  EXPECT_EQ(scale({1e-40}), kLargest);
  EXPECT_EQ(scale({0x1p-149}), kLargest);
  EXPECT_NEAR(scale({3}), 149.3333, 5e-5);
  EXPECT_EQ(scale_after(bench, Format::fp8_e4m3, {0, 0, 0}), 1);
  EXPECT_EQ(quantize(bench, Format::fp8_e4m3, Values(9, 0.0), 1).values, Values(9, 0.0));
}

TEST(ExplainFp8, FP8_2_TheAmaxOfAWindow_IsItsMaximum) {
  Workbench bench;
  EXPECT_EQ(window_amax(bench, {3, 10, 2, 1}), 10);
  const auto ten_with = [&](double amax) {
    return quantize(bench, Format::fp8_e4m3, {10}, scale_after(bench, Format::fp8_e4m3, {amax}));
  };
  EXPECT_FLOAT_EQ(static_cast<float>(scale_after(bench, Format::fp8_e4m3, {10})), 44.8f);
  EXPECT_EQ(ten_with(10).saturated, 0);
  EXPECT_EQ(scale_after(bench, Format::fp8_e4m3, {1}), 448);
  EXPECT_EQ(ten_with(1).saturated, 1);
  EXPECT_EQ(scale_after(bench, Format::fp8_e4m3, {4}), 112);
  EXPECT_EQ(ten_with(4).saturated, 1);
}

TEST(ExplainFp8, AScaleTooLarge_SaturatesAndOneTooSmall_Flushes) {
  Workbench bench;
  const ScaledNormals right = quantize_normals(bench, 1000, 1), large = quantize_normals(bench, 1000, 64),
                    small = quantize_normals(bench, 1000, 0x1p-16);
  EXPECT_EQ(right.saturated + right.flushed, 0);
  EXPECT_LT(right.relative_error, 0.04);
  EXPECT_GT(large.saturated, 500);
  EXPECT_EQ(large.flushed, 0);
  EXPECT_GT(small.flushed, 100);
  EXPECT_EQ(small.saturated, 0);
  EXPECT_GT(std::min(large.relative_error, small.relative_error), 4 * right.relative_error);
}

TEST(ExplainFp8, DelayedScaling_SaturatesWhenATensorGrows_CurrentScalingDoesNot) {
  Workbench bench;
  const std::vector<ScaledWindow> windows = follow_scales(bench, {1, 8, 8, 1, 1, 1, 1});
  EXPECT_EQ(windows[1].delayed_scale, 448);
  EXPECT_EQ(windows[1].delayed_saturated, 3);  // 8, 4 and 2; 1 is just in range
  EXPECT_EQ(windows[2].delayed_scale, 56);
  EXPECT_EQ(windows[2].delayed_saturated, 0);
  EXPECT_EQ(windows[6].delayed_scale, 56);  // the second 8 is the fourth of the last four
  for (const ScaledWindow& w : windows) EXPECT_EQ(w.current_saturated, 0);
}

TEST(ExplainFp8, AnOutlier_CostsThoseThatShareItsScale) {
  Workbench bench;
  const std::vector<SharedScale> shared = share_scales(bench, 1e5);
  ASSERT_EQ(shared.size(), 4u);
  EXPECT_EQ(shared[0].scales, 1);
  EXPECT_EQ(shared[1].scales, 8);
  EXPECT_EQ(shared[2].scales, 16);
  EXPECT_EQ(shared[3].scales, 64);
  EXPECT_GT(shared[0].relative_error, 0.1);
  for (std::size_t i = 1; i < shared.size(); ++i) {
    EXPECT_LT(shared[i].relative_error, shared[i - 1].relative_error);
    EXPECT_LE(shared[i].flushed, shared[i - 1].flushed);
  }
  // Without one they all do alike.
  for (const SharedScale& even : share_scales(bench, 0.5)) EXPECT_LT(even.relative_error, 0.04);
}

}  // namespace
}  // namespace mixroof::cli
