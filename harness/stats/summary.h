// Summaries of samples: median with a distribution-free interval, mean and deviation. Pure functions. A new figure over
// samples is one field here, its formula in summary.cc and a case with a worked value in summary_test.cc.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace mixroof {

/// What is known about one measured quantity (STAT of the result document). Figures are NaN when n = 0, so that nobody
/// takes "no sample" for a value; writers turn them into null.
struct Summary {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  std::int64_t n = 0;  // valid samples
  double median = kUnknown;
  double low = kUnknown;  // interval of the median
  double high = kUnknown;
  double confidence = 0;  // level that [low, high] really has, 0 … 1
  double mean = kUnknown;
  std::optional<double> stddev;  // of the sample (n - 1); absent below two samples
  double min = kUnknown;
  double max = kUnknown;
  std::vector<double> samples;                  // valid ones, in the order taken
  std::optional<std::vector<double>> clock_hz;  // beside each sample, where the device tells
  std::int64_t discarded = 0;                   // invalid samples: not finite, or not above zero
  bool throttled = false;  // a clock fell more than 5 % below the highest; says nothing without clock_hz
  bool converged = false;  // the sampler reached its target

  bool empty() const { return n == 0; }
  /// Half of the interval's width over the median; infinity when there is none.
  double relative_half_width() const;
};

/// Order statistics whose interval covers the median, whatever the distribution.
struct MedianInterval {
  std::int64_t low_rank = 0;  // counted from 0 in the sorted samples
  std::int64_t high_rank = 0;
  double coverage = 0;  // 1 − 2·P(Binomial(n, ½) ≤ low_rank)
};

/// The narrowest symmetric interval with at least `confidence`; min and max with the coverage they have when no
/// interval reaches it (n ≤ 5 for 95 %). n = 0 gives coverage 0.
MedianInterval median_interval(std::int64_t n, double confidence);

/// Mean of the two middle values for even n; NaN for none.
double median(std::span<const double> samples);
/// Welford's recurrence, n − 1 in the denominator; nothing below two samples.
std::optional<double> sample_stddev(std::span<const double> samples);

/// Durations or rates as they were taken. Values that are not finite or not above zero (a clock that ran backwards or
/// stood still) are dropped and counted in `discarded`, together with their clocks. `clock_hz` is empty or as long as
/// `raw`.
Summary summarize(std::span<const double> raw, double confidence = 0.95, std::span<const double> clock_hz = {});

/// The summary of work ÷ sample for each sample: times become rates. Counts and flags are kept.
Summary rates(const Summary& times, double work, double confidence = 0.95);

}  // namespace mixroof
