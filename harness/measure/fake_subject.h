// A clock and subjects whose times are known, for tests of what measures: medians, intervals, discards, stopping and
// verdicts are then asserted exactly.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "harness/measure/sampler.h"

namespace mixroof {

/// Stands still but for advance().
class FakeClock : public Clock {
 public:
  explicit FakeClock(double resolution_s = 1e-9) : resolution_s_(resolution_s) {}
  double now_s() const override { return now_s_; }
  double resolution_s() const override { return resolution_s_; }
  void advance(double seconds) { now_s_ += seconds; }

 private:
  double now_s_ = 1000.0;
  double resolution_s_;
};

/// Each run takes the next of `times_s` (seconds of one repetition, over and over) and each preparation `setup_s`, both
/// on the fake clock. A time that is not positive does not move the clock.
class FakeSubject : public Subject {
 public:
  FakeSubject(FakeClock& clock, std::vector<double> times_s, double setup_s = 0)
      : clock_(clock), times_s_(std::move(times_s)), setup_s_(setup_s) {}

  void prepare_sample() override {
    ++preparations_;
    clock_.advance(setup_s_);
  }
  double run(std::int64_t repetitions) override {
    const double seconds =
        times_s_[static_cast<std::size_t>(runs_++) % times_s_.size()] * static_cast<double>(repetitions);
    if (seconds > 0) clock_.advance(seconds);
    return seconds;
  }
  std::int64_t runs() const { return runs_; }
  std::int64_t preparations() const { return preparations_; }

 private:
  FakeClock& clock_;
  std::vector<double> times_s_;
  double setup_s_;
  std::int64_t runs_ = 0;
  std::int64_t preparations_ = 0;
};

}  // namespace mixroof
