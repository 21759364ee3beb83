// Google Benchmark over Subjects: manual time, and the samples of the last run kept. Its own counters stay usable,
// since rates are then divided by manual time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "harness/measure/sampler.h"
#include "harness/status.h"

namespace mixroof {

/// What one benchmark measured. Google Benchmark enters a benchmark again with growing counts; this is the last run.
struct GbenchRecord {
  std::string name;                  // as registered; Google Benchmark appends "/manual_time" and the like
  Status status = Status::skipped;   // skipped: it was never entered; ok; or that of the error
  std::string reason;                // of a status other than ok
  std::int64_t repetitions = 1;      // of one sample
  std::vector<double> samples;       // seconds of one repetition
  std::shared_ptr<Subject> subject;  // null before the first run; reset it to free it once it was reported
};

struct GbenchOptions {
  /// A rate per second: `work` per repetition (FLOPs, bytes, tokens) under the name `counter`; empty for none.
  std::string counter = {};
  double work = 0;
  /// Repetitions of every run; 0 leaves their number to --benchmark_min_time. For subjects that take much longer than
  /// the time they report, since Google Benchmark then knows no end.
  std::int64_t iterations = 0;
};

/// Registers `name`; `make` builds the subject when the benchmark first runs (filters then cost nothing) and may throw,
/// as may the subject: the benchmark is then skipped with the error. The record lives as long as the caller keeps it or
/// the benchmark is registered.
std::shared_ptr<GbenchRecord> register_subject(const std::string& name, std::function<std::unique_ptr<Subject>()> make,
                                               const GbenchOptions& options = {});

}  // namespace mixroof
