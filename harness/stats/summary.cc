#include "harness/stats/summary.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace mixroof {
namespace {

constexpr double kThrottledShare = 0.95;

bool is_valid(double sample) { return std::isfinite(sample) && sample > 0; }

/// P(Binomial(n, ½) = k), by logarithms so that large n does not underflow on the way.
double binomial_half(std::int64_t n, std::int64_t k) {
  const auto real_n = static_cast<double>(n);
  const auto real_k = static_cast<double>(k);
  return std::exp(std::lgamma(real_n + 1) - std::lgamma(real_k + 1) - std::lgamma(real_n - real_k + 1) -
                  real_n * std::log(2.0));
}

double mean_of(std::span<const double> samples) {
  double mean = 0;
  double count = 0;
  for (const double sample : samples) mean += (sample - mean) / ++count;
  return mean;
}

double median_of_sorted(std::span<const double> sorted) {
  const std::size_t half = sorted.size() / 2;
  return sorted.size() % 2 ? sorted[half] : sorted[half - 1] + (sorted[half] - sorted[half - 1]) / 2;
}

void describe(Summary& summary, double confidence) {
  summary.n = static_cast<std::int64_t>(summary.samples.size());
  if (summary.empty()) return;
  std::vector<double> sorted = summary.samples;
  std::sort(sorted.begin(), sorted.end());
  const MedianInterval interval = median_interval(summary.n, confidence);
  summary.median = median_of_sorted(sorted);
  summary.low = sorted[static_cast<std::size_t>(interval.low_rank)];
  summary.high = sorted[static_cast<std::size_t>(interval.high_rank)];
  summary.confidence = interval.coverage;
  summary.mean = mean_of(sorted);
  summary.stddev = sample_stddev(sorted);
  summary.min = sorted.front();
  summary.max = sorted.back();
}

bool is_throttled(const std::vector<double>& clock_hz) {
  if (clock_hz.empty()) return false;
  const auto [lowest, highest] = std::minmax_element(clock_hz.begin(), clock_hz.end());
  return *lowest < kThrottledShare * *highest;
}

}  // namespace

double Summary::relative_half_width() const {
  return n > 1 ? (high - low) / 2 / median : std::numeric_limits<double>::infinity();
}

MedianInterval median_interval(std::int64_t n, double confidence) {
  if (n <= 0) return {};
  MedianInterval best{0, n - 1, 1 - 2 * binomial_half(n, 0)};
  double below = binomial_half(n, 0);
  for (std::int64_t rank = 1; rank < n - 1 - rank; ++rank) {
    below += binomial_half(n, rank);
    if (1 - 2 * below < confidence) break;
    best = {rank, n - 1 - rank, 1 - 2 * below};
  }
  best.coverage = std::max(0.0, best.coverage);
  return best;
}

double median(std::span<const double> samples) {
  if (samples.empty()) return Summary::kUnknown;
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  return median_of_sorted(sorted);
}

std::optional<double> sample_stddev(std::span<const double> samples) {
  if (samples.size() < 2) return std::nullopt;
  double mean = 0, squares = 0, count = 0;
  for (const double sample : samples) {
    const double delta = sample - mean;
    mean += delta / ++count;
    squares += delta * (sample - mean);
  }
  return std::sqrt(squares / (count - 1));
}

Summary summarize(std::span<const double> raw, double confidence, std::span<const double> clock_hz) {
  if (!clock_hz.empty() && clock_hz.size() != raw.size())
    throw std::logic_error("summarize: one clock per sample, or none");
  Summary summary;
  if (!clock_hz.empty()) summary.clock_hz.emplace();
  for (std::size_t i = 0; i < raw.size(); ++i) {
    if (!is_valid(raw[i])) {
      ++summary.discarded;
      continue;
    }
    summary.samples.push_back(raw[i]);
    if (summary.clock_hz) summary.clock_hz->push_back(clock_hz[i]);
  }
  if (summary.clock_hz) summary.throttled = is_throttled(*summary.clock_hz);
  describe(summary, confidence);
  return summary;
}

Summary rates(const Summary& times, double work, double confidence) {
  Summary summary = times;
  for (double& sample : summary.samples) sample = work / sample;
  describe(summary, confidence);
  return summary;
}

}  // namespace mixroof
