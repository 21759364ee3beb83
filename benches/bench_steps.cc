// Whole training updates, one benchmark per recipe. Every recipe attempts the same number of updates on the same tokens
// in the same order, from the same initial parameters; that is why Google Benchmark does not choose the number.
#include "benches/bench_main.h"
#include "harness/execute/initialization.h"
#include "harness/measure/run_document.h"
#include "harness/measure/steps_pass.h"

namespace mixroof {
namespace {

/// Updates of one recipe, each recorded. Those that settle caches and pages have run before the first sample.
class UpdatesSubject : public Subject {
 public:
  UpdatesSubject(Bench& bench, std::span<const std::vector<float>> parameters, StepRecord& record)
      : bench_(bench),
        record_(record),
        execution_(open_execution(bench.config(), bench.backend(), parameters, record)) {
    run(kWarmUpUpdates);
  }

  double run(std::int64_t repetitions) override {
    double seconds = 0;
    for (std::int64_t i = 0; i < repetitions; ++i) {
      seconds += run_recorded_update(*execution_, bench_.config(), bench_.data(), record_);
      if (record_.status != Status::ok) throw Error(record_.status, record_.reason);
    }
    return seconds;
  }
  std::int64_t max_repetitions() const override { return 1; }

 private:
  Bench& bench_;
  StepRecord& record_;
  std::unique_ptr<Execution> execution_;
};

/// The recipes of a run and what their numerics are compared with.
class Steps {
 public:
  explicit Steps(Bench& bench) : bench_(bench) {
    for (const Recipe* recipe : bench.config().recipes) records_.emplace_back().recipe = recipe;
  }

  std::vector<StepRecord>& records() { return records_; }

  std::unique_ptr<Subject> open(StepRecord& record) {
    if (parameters_.empty()) parameters_ = initial_parameters(bench_.config().model, bench_.config().seed);
    return std::make_unique<UpdatesSubject>(bench_, parameters_, record);
  }

  void put(StepRecord& record, const GbenchRecord& measured) {
    record.status = measured.status;
    record.reason = measured.reason;
    if (!record.loss.empty()) {
      bench_.put_workload(static_cast<std::int64_t>(record.loss.size()));
      find_reference(record);
    }
    Json row = step_json(record, fp32_.value_or(Trajectory{}), nullptr, std::nullopt, Roofline({}, {}), bench_.config());
    if (row["numerics"].is_object() && row["numerics"]["verdict"].is_null())
      row["numerics"]["reason"] = "not judged: benchmarks compare no updates with fp32 (mixroof run does)";
    row["speedup_vs_fp32_reason"] = "recipes ran one after the other (mixroof run interleaves them)";
    row["memory_reason"] = "not observed here (mixroof run gives each recipe a process of its own)";
    bench_.document().put_step(std::move(row));
  }

 private:
  /// Untimed where fp32 is not the recipe that ran first.
  void find_reference(const StepRecord& record) {
    if (record.recipe->name == kBaselineRecipe)
      fp32_ = Trajectory{.loss = record.loss, .grad_norm = record.grad_norm};
    else if (!fp32_)
      fp32_ = fp32_trajectory(bench_.config(), bench_.data(), bench_.backend(), static_cast<std::int64_t>(record.loss.size()), {});
  }

  Bench& bench_;
  std::vector<StepRecord> records_;
  std::vector<std::vector<float>> parameters_;
  std::optional<Trajectory> fp32_;
};

void add_benchmarks(Bench& bench) {
  const auto steps = std::make_shared<Steps>(bench);
  const auto tokens = static_cast<double>(effective_tokens(window_of(bench.config(), bench.data(), 0)));
  for (StepRecord& record : steps->records())
    bench.add(
        std::string(record.recipe->name), [steps, &record] { return steps->open(record); },
        {.counter = "tokens_per_s", .work = tokens, .iterations = bench.config().updates},
        [steps, &record](const GbenchRecord& measured) { steps->put(record, measured); });
}

}  // namespace
}  // namespace mixroof

int main(int argc, char** argv) {
  return mixroof::bench_main(
      argc, argv,
      {.name = "bench_steps",
       .summary = "Whole training updates (forward, backward, optimizer), one benchmark per recipe.",
       .examples = "  bench_steps --mixroof_recipes fp32,bf16-master --mixroof_out steps.json\n"
                   "  bench_steps --mixroof_model gpt2-124m --mixroof_seq 64 --mixroof_tokens_per_update 256",
       .has_workload = true,
       .updates = 8,
       .add_benchmarks = mixroof::add_benchmarks});
}
