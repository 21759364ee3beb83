// Scales from maxima, by hand-computed values; whole tensors against recorded ones are in quantize_test and quantize_blocks_test.
#include "kernels/quantize/scale_rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mixroof {
namespace {

constexpr double kE4m3 = 448, kE5m2 = 57344;
constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();

TEST(ScaleRules, FP8_1_AmaxThree_GivesItsQuotientRounded) {
  const ScaleChoice choice = scale_of_amax(3, kE4m3);
  EXPECT_EQ(choice.scale, 149.3333333f);
  EXPECT_EQ(choice.scale_inv, 1 / 149.3333333f);
  EXPECT_FALSE(choice.kept || choice.clamped);
}

TEST(ScaleRules, FP8_1_ZeroInfiniteAndNaN_KeepThePreviousScale) {
  for (const float amax : {0.0f, kInf, kNan}) {
    const ScaleChoice choice = scale_of_amax(amax, kE4m3, 16);
    EXPECT_EQ(choice.scale, 16);
    EXPECT_EQ(choice.scale_inv, 1.0f / 16);
    EXPECT_TRUE(choice.kept);
    EXPECT_EQ(scale_of_amax(amax, kE4m3).scale, 1) << "blocks have no previous one";
  }
}

TEST(ScaleRules, FP8_1_AnInfiniteQuotient_IsClampedFromItsThresholdOn) {
  for (const auto& [max_finite, threshold] : {std::pair{kE4m3, 1.3166e-36f}, {kE5m2, 1.6852e-34f}}) {
    EXPECT_TRUE(scale_of_amax(threshold * 0.999f, max_finite).clamped);
    EXPECT_EQ(scale_of_amax(threshold * 0.999f, max_finite).scale, kMax);
    EXPECT_FALSE(scale_of_amax(threshold * 1.001f, max_finite).clamped);
  }
  EXPECT_EQ(scale_of_amax(0x1p-149f, kE4m3).scale, kMax);
}

TEST(ScaleRules, FP8_2_TheWindowsMaximum_GivesItsScale) { EXPECT_EQ(scale_of_amax(10, kE4m3).scale, 44.8f); }

TEST(ScaleRules, AMargin_DividesByItsPowerOfTwo) { EXPECT_EQ(scale_of_amax(4, kE4m3, 1, 1).scale, 56); }

TEST(ScaleRules, MxRoundsUp_SoThatNothingSaturates) {
  // 448 / 448 = 1 exactly; a hair more needs 2; E5M2 likewise.
  EXPECT_EQ(mx_scale_of_amax(448, kE4m3).scale_inv, 1);
  EXPECT_EQ(mx_scale_of_amax(449, kE4m3).scale_inv, 2);
  EXPECT_EQ(mx_scale_of_amax(57345, kE5m2).scale_inv, 2);
  for (const float amax : {1e-30f, 0.37f, 3.0f, 500.0f, 1e30f})
    EXPECT_LE(amax * mx_scale_of_amax(amax, kE4m3).scale, 448) << amax;
  EXPECT_EQ(mx_scale_of_amax(3, kE4m3).scale * mx_scale_of_amax(3, kE4m3).scale_inv, 1);
}

TEST(ScaleRules, MxFloor_IsThatOfOcp_AndMaySaturate) {
  // floor(log2 500) - 8 = 0: 500 saturates at 448.
  EXPECT_EQ(mx_scale_of_amax(500, kE4m3, MxRounding::floor).scale_inv, 1);
  EXPECT_EQ(mx_scale_of_amax(512, kE4m3, MxRounding::floor).scale_inv, 2);
}

TEST(ScaleRules, MxBlocksOfZerosHaveTheLeastScale_NonFiniteOnesScaleOne) {
  EXPECT_EQ(mx_scale_of_amax(0, kE4m3).scale_inv, 0x1p-127f);
  EXPECT_EQ(mx_scale_of_amax(0, kE4m3, MxRounding::floor).scale_inv, 0x1p-127f);
  for (const float amax : {kInf, kNan}) {
    EXPECT_EQ(mx_scale_of_amax(amax, kE4m3).scale_inv, 1);
    EXPECT_TRUE(mx_scale_of_amax(amax, kE4m3).kept);
  }
}

TEST(ScaleRules, Blocks_OfEachScaling) {
  EXPECT_EQ(scale_block(Fp8Scaling::channel, 768), 768);
  EXPECT_EQ(scale_block(Fp8Scaling::block128, 768), 128);
  EXPECT_EQ(scale_block(Fp8Scaling::mx32, 768), 32);
  EXPECT_EQ(scale_block(Fp8Scaling::current, 768), 0);
  EXPECT_EQ(scale_format(Fp8Scaling::mx32), Format::e8m0);
  EXPECT_EQ(scale_format(Fp8Scaling::block128), Format::fp32);
}

}  // namespace
}  // namespace mixroof
