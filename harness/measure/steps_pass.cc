#include "harness/measure/steps_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <tuple>

#include "harness/execute/initialization.h"
#include "harness/measure/run_states.h"
#include "harness/stats/summary.h"

namespace mixroof {
namespace {

constexpr double kMemoryShare = 0.8;  // of the free bytes

std::int64_t now_update(const StepRecord& record) { return static_cast<std::int64_t>(record.loss.size()); }

/// One recipe of a group: its execution and its record.
struct Runner {
  StepRecord* record;
  std::unique_ptr<Execution> execution;
  bool active() const { return execution != nullptr && record->status == Status::ok; }
};

void describe(StepRecord& record, const Execution& execution) {
  const Program& program = execution.program();
  record.slices = slice(program);
  for (std::size_t s = 0; s < kSectionCount; ++s)
    for (const Op& op : program.sections[s]) {
      if (record.implementations.contains(op.problem.id())) continue;
      const Plan& plan = execution.plan_of(op);
      record.implementations[op.problem.id()] = {plan.implementation(), plan.emulated()};
      record.emulated = record.emulated || plan.emulated();
    }
  for (const Tensor& tensor : program.tensors) {
    std::string& formats = record.formats[std::string(name(tensor.tensor_class))];
    const std::string format(name(tensor.format));
    if (formats.find(format) == std::string::npos) formats += (formats.empty() ? "" : ",") + format;
  }
  const DramTraffic traffic = dram_traffic(program, execution.bytes(), execution.backend().facts().last_level_cache_bytes());
  record.dram_read = traffic.read;
  record.dram_written = traffic.written;
}

void record_update(StepRecord& record, const UpdateTimes& times, const UpdateOutcome& outcome) {
  const std::int64_t first = record.resumed ? record.resumed->from_update : 0;
  const bool is_warm_up = now_update(record) - first < kWarmUpUpdates;
  record.loss.push_back(outcome.loss);
  record.grad_norm.push_back(outcome.grad_norm);
  record.loss_scale.push_back(outcome.loss_scale_used);
  if (outcome.found_inf) record.overflowed.push_back(outcome.attempted);
  record.last = outcome;
  if (is_warm_up) {
    record.warm_up_s.push_back(times.total_s);
  } else if (!outcome.applied) {
    record.skipped_s.push_back(times.total_s);
  } else {
    record.applied_s.push_back(times.total_s);
    for (std::size_t p = 0; p < kPhaseCount; ++p) record.phase_s[p].push_back(times.phase_s[p]);
  }
  if (outcome.scale_exhausted) {
    record.status = Status::failed;
    record.reason = fmt::format("gradients overflowed at the floor of the loss scale in update {}", outcome.attempted);
  } else if (outcome.state_nonfinite) {
    record.status = Status::failed;
    record.reason = fmt::format("update {} left a parameter or moment that is not finite", outcome.attempted);
  }
}

void run_block(Runner& runner, const RunConfig& config, const TokenData& data, RunStates* states, std::int64_t count) {
  StepRecord& record = *runner.record;
  const std::size_t before = record.applied_s.size();
  for (std::int64_t i = 0; i < count && runner.active(); ++i) {
    run_recorded_update(*runner.execution, config, data, record);
    if (states != nullptr) states->after_update(record, *runner.execution);
  }
  const auto block = std::span(record.applied_s).subspan(before);
  record.block_median_s.push_back(block.empty() ? std::numeric_limits<double>::quiet_NaN() : median(block));
}

void trace(Runner& runner, const RunConfig& config, const TokenData& data, Backend& backend, std::int64_t updates) {
  OpTrace observer(backend);
  runner.execution->set_observer(&observer);
  const std::int64_t first = now_update(*runner.record);
  for (std::int64_t u = 0; u < updates; ++u)
    observer.end_update(runner.execution->run_update(window_of(config, data, first + u)).total_s);
  runner.execution->set_observer(nullptr);
  StepRecord& record = *runner.record;
  record.in_step_s = observer.by_problem();
  record.category_s = observer.seconds_by_category();
  record.recompute_s = observer.recompute_s();
  record.idle_s = observer.idle_s();
  record.traced_sum_fraction = observer.explained_fraction();
  record.traced_updates = updates;
}

/// Bytes that an execution of this recipe takes.
std::int64_t planned_bytes(const RunConfig& config, const Recipe& recipe, const Target& target) {
  return plan_bytes(config.lower_for(recipe, target)).arena_bytes;
}

/// Recipes in groups whose plans fit `limit` bytes together, the baseline in the first place of each.
std::vector<std::vector<const Recipe*>> groups_that_fit(const RunConfig& config, Backend& backend, std::int64_t limit) {
  const Recipe* baseline = nullptr;
  for (const Recipe* recipe : config.recipes)
    if (recipe->name == kBaselineRecipe) baseline = recipe;
  const std::int64_t base = baseline != nullptr ? planned_bytes(config, *baseline, backend.target()) : 0;
  std::vector<std::vector<const Recipe*>> groups;
  std::int64_t used = 0;
  for (const Recipe* recipe : config.recipes) {
    if (recipe == baseline) continue;
    const std::int64_t bytes = planned_bytes(config, *recipe, backend.target());
    if (groups.empty() || used + bytes > limit) {
      groups.emplace_back();
      used = base;
      if (baseline != nullptr) groups.back().push_back(baseline);
    }
    groups.back().push_back(recipe);
    used += bytes;
  }
  if (groups.empty()) groups.push_back({baseline});
  return groups;
}

/// The pass over one group. The first group settles how many updates every group runs.
class Group {
 public:
  Group(const RunConfig& config, const TokenData& data, Backend& backend, const StepsOptions& options, const RunEvents& events)
      : config_(config), data_(data), backend_(backend), options_(options), events_(events) {}

  void open(StepRecord& record, std::span<const std::vector<float>> parameters) {
    Runner runner{.record = &record, .execution = nullptr};
    try {
      runner.execution = open_execution(config_, backend_, parameters, record, options_.states);
    } catch (const Error& error) {
      record.status = error.status();
      record.reason = error.what();
    }
    runners_.push_back(std::move(runner));
  }

  /// Brings every recipe to where the foremost loaded state of the whole run stands: groups end together. Their times
  /// are no samples: they had no others beside them.
  std::int64_t catch_up() {
    const std::int64_t foremost = options_.states == nullptr ? 0 : options_.states->foremost();
    for (Runner& runner : runners_)
      while (runner.active() && now_update(*runner.record) < foremost && !events_.stopped()) {
        if (events_.show) events_.show(fmt::format("catching up, {}", runner.record->recipe->name),
                                       static_cast<std::size_t>(now_update(*runner.record)), static_cast<std::size_t>(foremost));
        StepRecord& record = *runner.record;
        const auto times = std::tuple(record.warm_up_s, record.applied_s, record.skipped_s, record.phase_s);
        run_recorded_update(*runner.execution, config_, data_, record);
        std::tie(record.warm_up_s, record.applied_s, record.skipped_s, record.phase_s) = times;
        options_.states->after_update(record, *runner.execution);
      }
    return foremost;
  }

  /// Returns the updates that stand at the end.
  std::int64_t run(std::int64_t updates, bool may_end_early, double budget_s, const std::function<void()>& on_round) {
    const auto start = std::chrono::steady_clock::now();
    std::mt19937_64 random(config_.seed);
    const std::int64_t from = catch_up();
    std::int64_t done = from;
    while (done < updates && !events_.stopped()) {
      const std::int64_t count = std::min(options_.updates_per_block, updates - done);
      std::vector<Runner*> order;
      for (Runner& runner : runners_) order.push_back(&runner);
      std::shuffle(order.begin(), order.end(), random);
      for (Runner* runner : order) {
        if (events_.show) events_.show(fmt::format("update {} of {}, {}", done + 1, updates, runner->record->recipe->name),
                                       static_cast<std::size_t>(done), static_cast<std::size_t>(updates));
        run_block(*runner, config_, data_, options_.states, count);
      }
      share_baseline_block();
      done += count;
      on_round();
      const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      const double per_update = elapsed / static_cast<double>(done - from);
      const double traced = per_update * static_cast<double>(options_.traced_updates);
      if (may_end_early && done - from > kWarmUpUpdates + options_.updates_per_block &&
          elapsed + per_update * static_cast<double>(options_.updates_per_block) + traced > budget_s)
        break;
    }
    return done;
  }

  void save_all() {
    if (options_.states == nullptr) return;
    for (const Runner& runner : runners_)
      if (runner.active()) options_.states->at_end(*runner.record, *runner.execution);
  }

  void trace_all() {
    for (Runner& runner : runners_) {
      if (!runner.active() || events_.stopped()) continue;
      if (events_.show) events_.show(fmt::format("op times inside updates, {}", runner.record->recipe->name), 0, 0);
      trace(runner, config_, data_, backend_, options_.traced_updates);
    }
    if (!options_.at_end) return;
    for (Runner& runner : runners_)
      if (runner.active() && !events_.stopped()) options_.at_end(*runner.record, *runner.execution);
  }

 private:
  /// Each record keeps the baseline's time of the same moments, whichever group it runs in.
  void share_baseline_block() {
    const auto baseline = std::find_if(runners_.begin(), runners_.end(),
                                       [](const Runner& runner) { return runner.record->recipe->name == kBaselineRecipe; });
    if (baseline == runners_.end()) return;
    for (Runner& runner : runners_)
      runner.record->baseline_block_median_s.push_back(baseline->record->block_median_s.back());
  }

  const RunConfig& config_;
  const TokenData& data_;
  Backend& backend_;
  const StepsOptions& options_;
  const RunEvents& events_;
  std::vector<Runner> runners_;
};

}  // namespace

std::unique_ptr<Execution> open_execution(const RunConfig& config, Backend& backend,
                                          std::span<const std::vector<float>> parameters, StepRecord& record,
                                          const RunStates* states) {
  auto execution =
      std::make_unique<Execution>(config.lower_for(*record.recipe, backend.target()), backend, Placement::arena);
  execution->initialize(parameters, config.loss_scale_of(*record.recipe));
  if (states != nullptr) states->restore(record, *execution);
  describe(record, *execution);
  return execution;
}

double run_recorded_update(Execution& execution, const RunConfig& config, const TokenData& data, StepRecord& record) {
  const UpdateTimes times = execution.run_update(window_of(config, data, now_update(record)));
  record_update(record, times, execution.outcome());
  return times.total_s;
}

std::vector<StepRecord> run_steps(const RunConfig& config, const TokenData& data, Backend& backend, const StepsOptions& options,
                                  const RunEvents& events, const std::function<void(const std::vector<StepRecord>&)>& on_block) {
  const std::vector<std::vector<float>> parameters = initial_parameters(config.model, config.seed);
  const auto free_share = static_cast<std::int64_t>(kMemoryShare * static_cast<double>(backend.memory_free_bytes()));
  const std::vector<std::vector<const Recipe*>> groups =
      groups_that_fit(config, backend, options.memory_bytes > 0 ? options.memory_bytes : free_share);
  std::vector<StepRecord> records;
  std::size_t members = 0;
  for (const auto& group : groups) members += group.size();
  records.reserve(members);  // groups keep pointers to their records
  std::int64_t updates = config.updates;
  for (const std::vector<const Recipe*>& recipes : groups) {
    Group group(config, data, backend, options, events);
    for (const Recipe* recipe : recipes) {
      records.emplace_back().recipe = recipe;
      group.open(records.back(), parameters);
    }
    const double share = options.budget_s * static_cast<double>(recipes.size()) / static_cast<double>(members);
    updates = group.run(updates, &recipes == &groups.front(), share, [&] { on_block(records); });
    group.save_all();
    group.trace_all();
    on_block(records);
  }
  return records;
}

Trajectory fp32_trajectory(const RunConfig& config, const TokenData& data, Backend& backend, std::int64_t updates,
                           const RunEvents& events) {
  Trajectory fp32;
  try {
    Execution execution(config.lower_for(find_recipe(kBaselineRecipe), backend.target()), backend, Placement::arena);
    execution.initialize(initial_parameters(config.model, config.seed), 1.0);
    for (std::int64_t update = 0; update < updates && !events.stopped(); ++update) {
      if (events.show) events.show("fp32 to compare with", static_cast<std::size_t>(update), static_cast<std::size_t>(updates));
      execution.run_update(window_of(config, data, update));
      const UpdateOutcome outcome = execution.outcome();
      fp32.loss.push_back(outcome.loss);
      fp32.grad_norm.push_back(outcome.grad_norm);
    }
  } catch (const Error&) {
    return {};
  }
  return fp32;
}

}  // namespace mixroof
