// Code that repeats inside one parallel region on every CPU worker: for working sets so small that a region of their
// own would cost more than they do.
#pragma once

#include <functional>
#include <utility>

#include "harness/backend/cpu/parallel.h"
#include "harness/measure/sampler.h"

namespace mixroof {

/// One sample is one region: the time until the last worker has run `body(worker, repetitions)`.
class WorkersSubject : public Subject {
 public:
  using Body = std::function<void(int worker, std::int64_t repetitions)>;

  /// `warms_up`: one repetition runs untimed before each sample, so that the working set is where it shall be.
  explicit WorkersSubject(Body body, bool warms_up = true) : body_(std::move(body)), warms_up_(warms_up) {}

  void prepare_sample() override {
    if (warms_up_) on_all_workers(1);
  }
  double run(std::int64_t repetitions) override {
    const double start_s = steady_clock().now_s();
    on_all_workers(repetitions);
    return steady_clock().now_s() - start_s;
  }

 private:
  void on_all_workers(std::int64_t repetitions) {
    parallel_ranges(worker_count(), 1, [&](int worker, std::int64_t, std::int64_t) { body_(worker, repetitions); });
  }

  Body body_;
  bool warms_up_;
};

}  // namespace mixroof
