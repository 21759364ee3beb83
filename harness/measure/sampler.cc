#include "harness/measure/sampler.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>

namespace mixroof {
namespace {

constexpr std::int64_t kMostWarmupRuns = 20;
constexpr std::int64_t kMostInvalidInARow = 20;
constexpr double kMostRepetitions = 1e12;
// Doubling the samples of independent noise narrows the interval by a third; noise that stays is not independent.
constexpr double kImprovement = 0.95;
constexpr int kStallsToStop = 2;

class SteadyClock : public Clock {
 public:
  double now_s() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  double resolution_s() const override {
    static const double resolution = measure_resolution();
    return resolution;
  }

 private:
  static double measure_resolution() {
    using Time = std::chrono::steady_clock;
    Time::duration least = Time::duration::max();
    for (int i = 0; i < 200; ++i) {
      const Time::time_point from = Time::now();
      Time::time_point to = Time::now();
      while (to == from) to = Time::now();
      least = std::min(least, to - from);
    }
    return std::chrono::duration<double>(least).count();
  }
};

/// The state of one subject between its blocks.
class Sampler {
 public:
  Sampler(Subject& subject, const SamplingOptions& options, const Clock& clock)
      : subject_(subject), options_(options), clock_(clock), next_check_(options.min_samples) {}

  bool is_done() const { return reason_.has_value(); }
  bool has_samples() const { return !raw_.empty(); }
  void end(StopReason reason) {
    if (!is_done()) reason_ = reason;
  }

  /// Takes up to `block_samples`, or those that fit until `deadline_s`; appends them to `block`.
  void take(std::int64_t block_samples, double deadline_s, const std::function<bool()>& stop, Block& block) {
    if (warmup_runs_ == 0) warm_up(options_.warmup_share * std::max(0.0, deadline_s - clock_.now_s()));
    for (std::int64_t i = 0; i < block_samples && !is_done(); ++i) {
      const bool is_late = clock_.now_s() >= deadline_s;
      if (is_late && has_samples()) break;
      record(is_late ? last_warmup_s_ : run(), block);
      if (stop()) end(StopReason::stopped);
    }
    block.repetitions = repetitions_;
  }

  SampleResult result() const {
    SampleResult result{.summary = summarize(raw_, options_.confidence),
                        .reason = reason_.value_or(StopReason::budget),
                        .repetitions = repetitions_,
                        .warmup_runs = warmup_runs_};
    result.summary.converged = result.reason == StopReason::target;
    return result;
  }

 private:
  double run() {
    subject_.prepare_sample();
    return subject_.run(repetitions_) / static_cast<double>(repetitions_);
  }

  void warm_up(double limit_s) {
    const double start_s = clock_.now_s();
    double previous_s = 0;
    while (warmup_runs_ < kMostWarmupRuns) {
      last_warmup_s_ = run();
      ++warmup_runs_;
      if (clock_.now_s() - start_s >= limit_s) return;
      if (grow_batch()) {
        previous_s = 0;
        continue;
      }
      if (previous_s > 0 && std::fabs(last_warmup_s_ - previous_s) <= options_.stable_within * previous_s) return;
      previous_s = last_warmup_s_;
    }
  }

  /// Whether the batch was too short and has been made longer.
  bool grow_batch() {
    const double resolution_s = std::max(clock_.resolution_s(), subject_.resolution_s());
    const double needed_s = std::max(options_.min_sample_s, resolution_s / options_.resolution_share);
    const double batch_s = last_warmup_s_ * static_cast<double>(repetitions_);
    const double most = std::min(static_cast<double>(subject_.max_repetitions()), kMostRepetitions);
    // A negative duration says nothing about the length of the batch.
    if (batch_s < 0 || batch_s >= needed_s || static_cast<double>(repetitions_) >= most) return false;
    const double factor = batch_s > 0 ? std::clamp(1.2 * needed_s / batch_s, 2.0, 10.0) : 10.0;
    repetitions_ = static_cast<std::int64_t>(std::min(most, std::ceil(static_cast<double>(repetitions_) * factor)));
    return true;
  }

  void record(double sample_s, Block& block) {
    raw_.push_back(sample_s);
    block.samples.push_back(sample_s);
    const bool is_valid = std::isfinite(sample_s) && sample_s > 0;
    invalid_in_a_row_ = is_valid ? 0 : invalid_in_a_row_ + 1;
    if (invalid_in_a_row_ >= kMostInvalidInARow) end(StopReason::invalid_clock);
    if (is_valid) decide();
  }

  void decide() {
    const Summary summary = summarize(raw_, options_.confidence);
    if (summary.n < options_.min_samples) return;
    const double half_width = summary.relative_half_width();
    if (half_width <= options_.target_half_width) return end(StopReason::target);
    if (summary.n >= options_.max_samples) return end(StopReason::max_samples);
    if (summary.n < next_check_) return;
    next_check_ = 2 * summary.n;
    stalls_ = half_width > kImprovement * checked_half_width_ ? stalls_ + 1 : 0;
    checked_half_width_ = half_width;
    if (stalls_ >= kStallsToStop) end(StopReason::no_improvement);
  }

  Subject& subject_;
  const SamplingOptions& options_;
  const Clock& clock_;
  std::vector<double> raw_;
  std::int64_t repetitions_ = 1;
  std::int64_t warmup_runs_ = 0;
  double last_warmup_s_ = 0;
  std::int64_t invalid_in_a_row_ = 0;
  std::int64_t next_check_;
  double checked_half_width_ = std::numeric_limits<double>::infinity();
  int stalls_ = 0;
  std::optional<StopReason> reason_;
};

/// Subjects that still need samples, in an order of the round's own. Not std::shuffle, whose order each library
/// chooses.
std::vector<std::size_t> round_order(const std::vector<Sampler>& samplers, std::mt19937_64& random) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < samplers.size(); ++i)
    if (!samplers[i].is_done()) order.push_back(i);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

}  // namespace

const Clock& steady_clock() {
  static const SteadyClock clock;
  return clock;
}

std::string_view name(StopReason reason) {
  switch (reason) {
    case StopReason::target:
      return "target";
    case StopReason::no_improvement:
      return "no_improvement";
    case StopReason::max_samples:
      return "max_samples";
    case StopReason::budget:
      return "budget";
    case StopReason::stopped:
      return "stopped";
    case StopReason::invalid_clock:
      return "invalid_clock";
  }
  return "budget";
}

std::vector<SampleResult> sample_interleaved(std::span<Subject* const> subjects, const SamplingOptions& options,
                                             std::int64_t block_samples, std::uint64_t seed,
                                             const SamplingCallbacks& callbacks, const Clock& clock) {
  const double deadline_s = clock.now_s() + options.budget_s;
  std::mt19937_64 random(seed);
  std::vector<Sampler> samplers;
  for (Subject* subject : subjects) samplers.emplace_back(*subject, options, clock);
  bool is_stopped = false;
  const std::function<bool()> stop = [&] { return is_stopped = is_stopped || (callbacks.stop && callbacks.stop()); };
  const auto end_all = [&](StopReason reason) {
    for (Sampler& sampler : samplers) sampler.end(reason);
  };

  for (std::int64_t round = 0;; ++round) {
    const std::vector<std::size_t> order = round_order(samplers, random);
    if (order.empty()) break;
    for (std::size_t turn = 0; turn < order.size() && !is_stopped; ++turn) {
      Sampler& sampler = samplers[order[turn]];
      const double now_s = clock.now_s();
      if (now_s >= deadline_s && sampler.has_samples()) continue;
      const double share_s = std::max(0.0, deadline_s - now_s) / static_cast<double>(order.size() - turn);
      Block block{.subject = order[turn], .round = round, .repetitions = 1, .samples = {}};
      sampler.take(block_samples, now_s + share_s, stop, block);
      if (callbacks.on_block) callbacks.on_block(block);
    }
    if (is_stopped) end_all(StopReason::stopped);
    if (clock.now_s() >= deadline_s) end_all(StopReason::budget);
  }

  std::vector<SampleResult> results;
  for (const Sampler& sampler : samplers) results.push_back(sampler.result());
  return results;
}

SampleResult sample(Subject& subject, const SamplingOptions& options, const SamplingCallbacks& callbacks,
                    const Clock& clock) {
  Subject* const one = &subject;
  return sample_interleaved(std::span(&one, 1), options, options.min_samples, /*seed=*/0, callbacks, clock).front();
}

}  // namespace mixroof
