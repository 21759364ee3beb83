#include "harness/observe/value_comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace mixroof {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

DifferenceSums sums(const std::vector<double>& values, const std::vector<double>& reference) {
  DifferenceSums all;
  for (std::size_t i = 0; i < values.size(); ++i) all.add(values[i], reference[i]);
  return all;
}

TEST(DifferenceSums, FollowTheirDefinitions) {
  // Reference (3, 4) of length 5; values (3, 3): 1 off, length √18, product 9 + 12.
  const DifferenceSums s = sums({3, 3}, {3, 4});
  EXPECT_DOUBLE_EQ(s.rel_l2(), 1.0 / 5);
  EXPECT_DOUBLE_EQ(s.cosine(), 21 / (5 * std::sqrt(18.0)));
  EXPECT_DOUBLE_EQ(s.norm_ratio(), std::sqrt(18.0) / 5);
}

TEST(DifferenceSums, OfTensorsAddUpToThoseOfTheWhole_AndWeightsStandForValuesLeftOut) {
  DifferenceSums parts = sums({1, 2}, {1, 3});
  parts.add(sums({5}, {4}));
  EXPECT_DOUBLE_EQ(parts.rel_l2(), sums({1, 2, 5}, {1, 3, 4}).rel_l2());
  DifferenceSums weighted;
  weighted.add(2, 3, 4);
  EXPECT_DOUBLE_EQ(weighted.difference_square, sums({2, 2, 2, 2}, {3, 3, 3, 3}).difference_square);
}

TEST(DifferenceSums, ZerosAndValuesThatAreNotFinite) {
  EXPECT_EQ(sums({0, 0}, {0, 0}).rel_l2(), 0);
  EXPECT_EQ(sums({0, 0}, {0, 0}).cosine(), 1);
  EXPECT_EQ(sums({1}, {0}).rel_l2(), kInf);
  EXPECT_EQ(sums({1}, {0}).cosine(), 0);
  EXPECT_EQ(sums({0}, {1}).rel_l2(), 1) << "nothing instead of the reference is as far off as it is long";
  EXPECT_TRUE(std::isnan(sums({kNan}, {1}).rel_l2()));
  // Squares of 1e-170 vanish as a product, not as sums of their own: (1, 1) against (1, -1) is a right angle at any
  // scale.
  EXPECT_DOUBLE_EQ(sums({1e-140, 1e-140}, {1e-140, 1e-140}).cosine(), 1);
}

TEST(ValueStats, TellZerosSubnormalAndNonfiniteValuesApart) {
  ValueStats stats;
  // fp16: least normal 2^-14 = 6.1e-5.
  stats.add(std::vector<double>{0, -0.0, 6e-5, -6e-5, 7e-5, -3, 2, kInf, kNan}, Format::fp16);
  EXPECT_EQ(stats.count, 9);
  EXPECT_EQ(stats.zeros, 2);
  EXPECT_EQ(stats.subnormal, 2);
  EXPECT_EQ(stats.nonfinite, 2);
  EXPECT_EQ(stats.min, -3);
  EXPECT_EQ(stats.max, 2);
  ValueStats wide;
  wide.add(std::vector<double>{6e-5}, Format::bf16);
  EXPECT_EQ(wide.subnormal, 0);
}

TEST(ZeroCounts, ZerosOfFp32AreStructural_OthersUnderflow_AndFewOfThemAreFelt) {
  ZeroCounts zeros;
  zeros.add(0, 0, 1e-8);      // masked
  zeros.add(0, 1e-9, 1e-8);   // lost, and AdamW's eps would have hidden it
  zeros.add(0, -2e-8, 1e-8);  // lost and felt
  zeros.add(1e-9, 0, 1e-8);   // no zero here
  EXPECT_EQ(zeros.values, 4);
  EXPECT_EQ(zeros.structural, 1);
  EXPECT_EQ(zeros.underflow_fraction(), 0.5);
  EXPECT_EQ(zeros.felt_fraction(), 0.25);
}

TEST(ExactAdamwUpdate, IsTheFormula) {
  // bc1 0.5: m̂ = 0.4; bc2 0.25: √v̂ = 0.2; 0.4/(0.2 + 0.2) = 1; decay 0.5 · 2 = 1; rate 0.1.
  const AdamwScalars s{
      .learning_rate = 0.1, .weight_decay = 0.5, .eps = 0.2, .bias_correction1 = 0.5, .bias_correction2 = 0.25};
  EXPECT_DOUBLE_EQ(exact_adamw_update(s, 2, 0.2, 0.01), -0.2);
  // A second moment of 0 divides by eps alone.
  EXPECT_DOUBLE_EQ(exact_adamw_update(s, 0, 0.2, 0), -0.1 * 0.4 / 0.2);
}

TEST(AdamwStepBound, HoldsForAnyGradients_AndIsReached) {
  const double beta1 = 0.9, beta2 = 0.95, bound = adamw_step_bound(beta1, beta2);
  EXPECT_NEAR(bound, 0.1 / std::sqrt(0.05 * (1 - 0.81 / 0.95)), 1e-12);
  // Cauchy-Schwarz is an equation for gradients that grow as (β2/β1) backwards in time.
  double m = 0, v = 0, g = 1e-60;
  for (int n = 0; n < 2000; ++n) {
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    g *= beta2 / beta1;
  }
  EXPECT_NEAR(m / std::sqrt(v), bound, 1e-3);
}

TEST(AbsorbedCounts, CountUpdatesThatWereNotZeroAndChangedNothing) {
  AbsorbedCounts counts;
  counts.add(-1e-5, 1, 1);     // absorbed
  counts.add(-1e-2, 1, 0.99);  // taken
  counts.add(0, 1, 1);         // there was nothing to take
  EXPECT_EQ(counts.updates, 2);
  EXPECT_EQ(counts.fraction(), 0.5);
  EXPECT_EQ(AbsorbedCounts{}.fraction(), 0);
}

}  // namespace
}  // namespace mixroof
