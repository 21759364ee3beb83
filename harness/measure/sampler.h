// The one sampling engine: warm-up, batches, interleaving, stopping. It knows nothing of what is measured (a Subject)
// nor of where time comes from (a Clock), so that its tests assert every decision exactly. A new stopping rule is one
// reason here and its condition in sampler.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "harness/stats/summary.h"

namespace mixroof {

/// Wall time, monotonic.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual double now_s() const = 0;
  /// Least duration that the clock tells apart, its own reading included.
  virtual double resolution_s() const = 0;
};
/// std::chrono::steady_clock; its resolution is measured on first use.
const Clock& steady_clock();

/// Something that takes time.
class Subject {
 public:
  virtual ~Subject() = default;
  /// Untimed, before each run(): restores state, chills or warms caches.
  virtual void prepare_sample() {}
  /// Runs `repetitions` times; returns the seconds that all of them took together.
  virtual double run(std::int64_t repetitions) = 0;
  /// Most repetitions of one run(); 1 where each needs a preparation of its own.
  virtual std::int64_t max_repetitions() const { return std::numeric_limits<std::int64_t>::max(); }
  /// Resolution of the timer behind run() where it is coarser than the Clock's (device events).
  virtual double resolution_s() const { return 0; }
};

struct SamplingOptions {
  double budget_s = 1.0;            // wall time of all subjects together, set-up and untimed parts included
  double target_half_width = 0.01;  // of the median's interval, relative
  double confidence = 0.95;
  std::int64_t min_samples = 8;
  std::int64_t max_samples = 500;
  double min_sample_s = 100e-6;  // batches grow to this, and until the resolution is below resolution_share of a batch
  double resolution_share = 0.005;
  double warmup_share = 0.2;    // most of a subject's share of the budget that goes into batch growth and warm-up
  double stable_within = 0.05;  // warm-up ends when two batches in a row differ by less
};

enum class StopReason : std::uint8_t {
  target,          // the interval is as narrow as asked for: converged
  no_improvement,  // more samples did not narrow it
  max_samples,
  budget,
  stopped,        // by the caller
  invalid_clock,  // durations kept coming out zero or negative
};
std::string_view name(StopReason reason);

struct SampleResult {
  Summary summary;  // seconds of one repetition; converged only with reason target
  StopReason reason = StopReason::budget;
  std::int64_t repetitions = 1;  // of one sample
  std::int64_t warmup_runs = 0;  // batches before the first sample, not in the summary
};

/// Samples of one subject taken in a row.
struct Block {
  std::size_t subject = 0;
  std::int64_t round = 0;
  std::int64_t repetitions = 1;
  std::vector<double> samples;  // seconds of one repetition, as measured (also invalid ones)
};

struct SamplingCallbacks {
  std::function<void(const Block&)> on_block =
      {};                           // each finished block at once, so that the caller can make it durable
  std::function<bool()> stop = {};  // true ends after the current sample
};

/// Samples subjects in rounds of blocks: in each round every subject that still needs samples has one block, in an
/// order drawn from `seed`, so that drift of the machine hits all alike. The round's remaining budget is shared by the
/// subjects still to come, so that a slow subject starves none; every subject gets at least one sample, and the wall
/// time is at most the budget plus one run() per subject that had none yet. A subject whose warm-up ate the budget
/// keeps its last warm-up run as its only sample.
std::vector<SampleResult> sample_interleaved(std::span<Subject* const> subjects, const SamplingOptions& options,
                                             std::int64_t block_samples, std::uint64_t seed,
                                             const SamplingCallbacks& callbacks = {},
                                             const Clock& clock = steady_clock());

/// One subject.
SampleResult sample(Subject& subject, const SamplingOptions& options, const SamplingCallbacks& callbacks = {},
                    const Clock& clock = steady_clock());

}  // namespace mixroof
