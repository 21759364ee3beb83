#include "harness/stats/summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mixroof {
namespace {

TEST(Summary, STA1_OneSample_HasNoDeviation) {
  const Summary s = summarize(std::vector<double>{1.25});
  EXPECT_EQ(s.n, 1);
  EXPECT_FALSE(s.stddev.has_value());
  EXPECT_EQ(s.median, 1.25);
  EXPECT_EQ(s.low, 1.25);
  EXPECT_EQ(s.high, 1.25);
  EXPECT_EQ(s.confidence, 0);  // one point covers the median with probability 0
}

TEST(Summary, STA1_TwoSamples_DivideByNMinusOne) {
  // Mean 1, squares 0.0016 + 0.0016 = 0.0032, over n − 1 = 1: √0.0032 = 0.0565685 (the population formula gives 0.04).
  EXPECT_NEAR(*summarize(std::vector<double>{0.96, 1.04}).stddev, 0.0565685, 5e-8);
}

TEST(Summary, STA1_DeviationOfATriple_IsOneAtEveryOffset) {
  for (const double offset : {0.0, 1e6, 1e9, 1e10}) {
    const std::vector<double> samples = {offset + 1, offset + 2, offset + 3};
    EXPECT_DOUBLE_EQ(*summarize(samples).stddev, 1.0) << offset;
  }
}

TEST(Summary, STA2_DurationsThatAreNotPositive_AreDroppedAndCounted) {
  // A clock that went 100 → 90 and 100 → 100.
  const Summary s = summarize(std::vector<double>{90.0 - 100.0, 100.0 - 100.0});
  EXPECT_EQ(s.n, 0);
  EXPECT_EQ(s.discarded, 2);
  EXPECT_TRUE(s.empty());
  EXPECT_TRUE(std::isnan(s.median));
  EXPECT_TRUE(rates(s, 1e9).samples.empty());
}

TEST(Summary, STA2_InvalidSamplesBetweenValidOnes_LeaveTheValidOnes) {
  const double inf = std::numeric_limits<double>::infinity();
  const Summary s = summarize(std::vector<double>{2, -1, std::nan(""), 4, inf, 0});
  EXPECT_EQ(s.samples, (std::vector<double>{2, 4}));
  EXPECT_EQ(s.discarded, 4);
  EXPECT_EQ(s.median, 3);
}

TEST(Summary, SamplesStayInTheOrderTaken) {
  EXPECT_EQ(summarize(std::vector<double>{3, 1, 2}).samples, (std::vector<double>{3, 1, 2}));
}

TEST(Summary, MedianAndMeanOfTen_AreExact) {
  // 1…10: median 5.5, mean 5.5, squares Σ(i − 5.5)² = 82.5, over 9: √9.1666… = 3.02765.
  const Summary s = summarize(std::vector<double>{10, 1, 9, 2, 8, 3, 7, 4, 6, 5});
  EXPECT_EQ(s.median, 5.5);
  EXPECT_DOUBLE_EQ(s.mean, 5.5);
  EXPECT_NEAR(*s.stddev, 3.02765035, 1e-8);
  EXPECT_EQ(s.low, 2);  // second of ten
  EXPECT_EQ(s.high, 9);
  EXPECT_DOUBLE_EQ(s.relative_half_width(), 3.5 / 5.5);
}

TEST(MedianInterval, LevelsAtSmallCounts_AreTheOnesReached) {
  struct Row {
    std::int64_t n, low_rank;
    double coverage;
  };
  // 1 − 2·Σ_{i ≤ rank} C(n, i)/2ⁿ: 5: 1 − 2/32; 6: 1 − 2/64; 7: 1 − 2/128; 8: 1 − 2/256; 9: 1 − 2·10/512;
  // 10: 1 − 2·11/1024; 20: 1 − 2·21700/2²⁰ with 1 + 20 + 190 + 1140 + 4845 + 15504 = 21700.
  for (const Row& row :
       {Row{2, 0, 0.5}, Row{5, 0, 0.9375}, Row{6, 0, 0.96875}, Row{7, 0, 0.984375}, Row{8, 0, 0.9921875},
        Row{9, 1, 0.9609375}, Row{10, 1, 0.978515625}, Row{20, 5, 1 - 2 * 21700.0 / 1048576}}) {
    const MedianInterval interval = median_interval(row.n, 0.95);
    EXPECT_EQ(interval.low_rank, row.low_rank) << row.n;
    EXPECT_EQ(interval.high_rank, row.n - 1 - row.low_rank) << row.n;
    EXPECT_NEAR(interval.coverage, row.coverage, 1e-12) << row.n;
  }
}

TEST(MedianInterval, LargeCounts_StayNearTheLevelAskedFor) {
  // Normal approximation: low rank ≈ n/2 − 0.98·√n, for 10,000: 4902.
  const MedianInterval interval = median_interval(10000, 0.95);
  EXPECT_NEAR(static_cast<double>(interval.low_rank), 4902, 2);
  EXPECT_GE(interval.coverage, 0.95);
  EXPECT_LT(interval.coverage, 0.952);
}

TEST(MedianInterval, NoSample_CoversNothing) { EXPECT_EQ(median_interval(0, 0.95).coverage, 0); }

TEST(Summary, Rates_AreWorkOverEachSample) {
  const Summary s = rates(summarize(std::vector<double>{0.5, 0.25, 1.0}), 100);
  EXPECT_EQ(s.samples, (std::vector<double>{200, 400, 100}));
  EXPECT_EQ(s.median, 200);
  EXPECT_EQ(s.max, 400);
}

TEST(Summary, AClockMoreThanFivePercentDown_IsThrottled) {
  const std::vector<double> samples = {1, 1, 1};
  EXPECT_FALSE(summarize(samples).throttled);
  EXPECT_FALSE(summarize(samples, 0.95, std::vector<double>{3e9, 2.9e9, 3e9}).throttled);
  const Summary s = summarize(samples, 0.95, std::vector<double>{3e9, 2.8e9, 3e9});
  EXPECT_TRUE(s.throttled);
  EXPECT_EQ(s.clock_hz->size(), 3u);
}

TEST(Summary, ClocksOfDroppedSamples_AreDroppedToo) {
  const Summary s = summarize(std::vector<double>{1, -1, 2}, 0.95, std::vector<double>{3e9, 1e9, 3e9});
  EXPECT_EQ(*s.clock_hz, (std::vector<double>{3e9, 3e9}));
  EXPECT_FALSE(s.throttled);
}

}  // namespace
}  // namespace mixroof
