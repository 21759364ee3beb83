#include "harness/measure/gbench_adapter.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace mixroof {
namespace {

constexpr double kLeastBatch_s = 1e-3;
constexpr std::int64_t kMostBatch = std::int64_t{1} << 30;

/// A subject between the entries of its benchmark.
struct Registered {
  std::function<std::unique_ptr<Subject>()> make;
  GbenchOptions options;
  std::shared_ptr<GbenchRecord> record;

  /// Builds the subject once and chooses its batch, which also warms it up. Where the number of repetitions is given,
  /// a sample is one of them.
  void set_up() {
    if (record->subject) return;
    record->subject = make();
    Subject& subject = *record->subject;
    const std::int64_t most = options.iterations > 0 ? 1 : std::min(kMostBatch, subject.max_repetitions());
    double seconds = 0;
    while (seconds < kLeastBatch_s && record->repetitions < most) {
      if (seconds > 0) record->repetitions = std::min(most, 2 * record->repetitions);
      subject.prepare_sample();
      seconds = std::max(subject.run(record->repetitions), 1e-9);
    }
  }

  void run(benchmark::State& state) {
    record->samples.clear();
    Subject& subject = *record->subject;
    const std::int64_t batch = record->repetitions;
    while (state.KeepRunningBatch(batch)) {
      subject.prepare_sample();
      const double seconds = subject.run(batch);
      state.SetIterationTime(seconds);
      record->samples.push_back(seconds / static_cast<double>(batch));
    }
    if (!options.counter.empty())
      state.counters[options.counter] =
          benchmark::Counter(options.work * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
    record->status = Status::ok;
  }

  void skip(benchmark::State& state, Status status, const char* reason) {
    record->status = status;
    record->reason = reason;
    state.SkipWithError(reason);
  }

  void enter(benchmark::State& state) {
    try {
      set_up();
      run(state);
    } catch (const Error& error) {
      skip(state, error.status(), error.what());
    } catch (const std::bad_alloc&) {
      skip(state, Status::out_of_memory, "the system gives no more memory; choose a smaller shape");
    } catch (const std::exception& error) {
      skip(state, Status::failed, error.what());
    }
  }
};

}  // namespace

std::shared_ptr<GbenchRecord> register_subject(const std::string& name, std::function<std::unique_ptr<Subject>()> make,
                                               const GbenchOptions& options) {
  auto registered = std::make_shared<Registered>();
  registered->make = std::move(make);
  registered->options = options;
  registered->record = std::make_shared<GbenchRecord>();
  registered->record->name = name;
  auto* benchmark =
      benchmark::RegisterBenchmark(name.c_str(), [registered](benchmark::State& state) { registered->enter(state); });
  benchmark->UseManualTime();
  if (options.iterations > 0) benchmark->Iterations(options.iterations);
  return registered->record;
}

}  // namespace mixroof
