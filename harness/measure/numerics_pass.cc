#include "harness/measure/numerics_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "harness/execute/initialization.h"

namespace mixroof {
namespace {

// An update at the end that is skipped says nothing; a few more are tried.
constexpr int kMostTries = 4;
constexpr std::int64_t kMostRecordBytes = std::int64_t{1} << 30;

constexpr const char* kNoTime = "the numerics pass's share of --budget ended before (give a larger one)";

/// The first attempted update with a value that was not finite; 0 when all were.
std::int64_t first_broken_update(const StepRecord& record) {
  if (!record.overflowed.empty()) return record.overflowed.front();
  return record.last.state_nonfinite ? record.last.attempted : 0;
}

/// The last update of [first, last] that was applied; 0 when there is none.
std::int64_t last_applied(const StepRecord& record, std::int64_t first, std::int64_t last) {
  while (last >= first &&
         std::find(record.overflowed.begin(), record.overflowed.end(), last) != record.overflowed.end())
    --last;
  return last >= first ? last : 0;
}

/// The settled one. For a recipe that could not go on to its end also the last one before the first overflow and the
/// last one of all: what broke it shows there.
std::set<std::int64_t> updates_to_compare(const StepRecord& record, std::int64_t first, std::int64_t last,
                                          bool has_end) {
  std::set<std::int64_t> updates;
  const auto add = [&](std::optional<std::int64_t> update) {
    if (update.value_or(0) > 0) updates.insert(*update);
  };
  add(first_settled_update(*record.recipe, record.overflowed, first, last));
  if (has_end || record.status == Status::ok) return updates;
  add(last_applied(record, first, last));
  if (!record.overflowed.empty()) add(last_applied(record, first, record.overflowed.front() - 1));
  return updates;
}

}  // namespace

/// Adds the seconds of its life to a total.
class NumericsPass::Stopwatch {
 public:
  explicit Stopwatch(double& total_s) : total_s_(total_s), before_s_(total_s) {}
  ~Stopwatch() { update(); }
  void update() {
    total_s_ = before_s_ + std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  double& total_s_;
  double before_s_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::optional<std::int64_t> first_settled_update(const Recipe& recipe, const std::vector<std::int64_t>& overflowed,
                                                 std::int64_t first, std::int64_t last) {
  std::optional<std::int64_t> unsettled;
  for (std::int64_t update = first; update <= last; ++update) {
    if (std::find(overflowed.begin(), overflowed.end(), update) != overflowed.end()) continue;
    if (recipe.fp8 != Fp8Scaling::delayed || update > first) return update;
    unsettled = update;
  }
  return unsettled;  // one update only: better than none
}

NumericsPass::NumericsPass(const RunConfig& config, const TokenData& data, Backend& backend, const RunEvents& events,
                           double budget_s)
    : config_(config), data_(data), backend_(backend), events_(events), budget_s_(budget_s) {}

const NumericEvidence* NumericsPass::find(const Recipe& recipe) const {
  const auto found = evidence_.find(recipe.name);
  return found == evidence_.end() ? nullptr : &found->second;
}

Window NumericsPass::next_window(const Execution& execution) const {
  return window_of(config_, data_, execution.outcome().attempted);
}

bool NumericsPass::has_time(NumericEvidence& evidence) const {
  if (spent_s_ < budget_s_) return true;
  evidence.not_compared = kNoTime;
  return false;
}

void NumericsPass::compare(const Recipe& recipe, Execution& execution, NumericEvidence& evidence) {
  const ComparisonOptions options{.limits = limits_for(recipe, config_.model.layers),
                                  .record_bytes = std::min(kMostRecordBytes, backend_.memory_free_bytes() / 4)};
  // It takes over the recipe's state, and lives no longer than needed: later groups of recipes want the memory.
  Execution fp32(config_.lower_for(find_recipe(kBaselineRecipe), backend_.target()), backend_, Placement::arena);
  UpdateComparison comparison = compare_update(execution, fp32, next_window(execution), options);
  if (comparison.first_nonfinite && (!evidence.first_nonfinite || comparison.update < evidence.first_nonfinite->update))
    evidence.first_nonfinite = comparison.first_nonfinite;
  if (!comparison.applied) return;
  const auto later = std::find_if(evidence.comparisons.begin(), evidence.comparisons.end(),
                                  [&](const UpdateComparison& other) { return other.update >= comparison.update; });
  if (later == evidence.comparisons.end() || later->update != comparison.update)
    evidence.comparisons.insert(later, std::move(comparison));
}

void NumericsPass::observe_end(const StepRecord& record, Execution& execution) {
  NumericEvidence& evidence = evidence_[record.recipe->name];
  Stopwatch watch(spent_s_);
  evidence.fp8 = read_fp8_counts(execution);
  // A baseline that runs in several groups is compared once.
  for (int tries = 0; tries < kMostTries && evidence.comparisons.empty() && !events_.stopped(); ++tries) {
    watch.update();
    if (tries > 0 && !has_time(evidence)) return;
    if (events_.show)
      events_.show(fmt::format("numerics after {} updates, {}", record.loss.size(), record.recipe->name), 0, 0);
    try {
      compare(*record.recipe, execution, evidence);
    } catch (const Error& error) {
      evidence.not_compared = error.what();
      return;
    }
  }
}

void NumericsPass::start_again(const StepRecord& record, NumericEvidence& evidence,
                               const std::function<void(Execution&)>& body) {
  try {
    StepRecord unused;
    unused.recipe = record.recipe;
    const std::unique_ptr<Execution> execution =
        open_execution(config_, backend_, initial_parameters(config_.model, config_.seed), unused);
    body(*execution);
    if (!evidence.fp8) evidence.fp8 = read_fp8_counts(*execution);
  } catch (const Error& error) {
    evidence.not_compared = error.what();
    if (!evidence.nonfinite_reason.empty()) evidence.nonfinite_reason = error.what();
  }
}

void NumericsPass::observe_start(const StepRecord& record) {
  if (record.loss.empty() || record.status == Status::not_supported || record.status == Status::out_of_memory) return;
  NumericEvidence& evidence = evidence_[record.recipe->name];
  Stopwatch watch(spent_s_);
  if (const std::int64_t broken = first_broken_update(record);
      broken > 0 && evidence.first_nonfinite.value_or(Place{}).update != broken) {
    evidence.first_nonfinite.reset();  // of a later update
    evidence.nonfinite_reason = fmt::format("update {} was not reached again: {}", broken, kNoTime);
  }
  if (!evidence.comparisons.empty() && !has_time(evidence)) return;
  if (events_.show) events_.show(fmt::format("numerics at the start, {}", record.recipe->name), 0, 0);
  start_again(record, evidence, [&](Execution& execution) { compare_from_start(record, execution, watch, evidence); });
}

void NumericsPass::compare_from_start(const StepRecord& record, Execution& execution, Stopwatch& watch,
                                      NumericEvidence& evidence) {
  const std::int64_t first = execution.outcome().attempted + 1,
                     last = first + static_cast<std::int64_t>(record.loss.size()) - 1;
  const std::set<std::int64_t> wanted = updates_to_compare(record, first, last, !evidence.comparisons.empty());
  if (wanted.empty()) {
    evidence.not_compared = "no update was applied";
    return;
  }
  const std::int64_t broken = first_broken_update(record);
  for (std::int64_t update = first; update <= *wanted.rbegin() && !events_.stopped(); ++update) {
    watch.update();
    if (!evidence.comparisons.empty() && !has_time(evidence)) return;
    if (wanted.contains(update)) {
      compare(*record.recipe, execution, evidence);
    } else if (update == broken) {
      replay_to(broken, execution, watch, evidence);
    } else {
      execution.run_update(next_window(execution));
    }
  }
}

void NumericsPass::locate_nonfinite(const StepRecord& record) {
  const auto found = evidence_.find(record.recipe->name);
  if (found == evidence_.end() || found->second.nonfinite_reason.empty() || events_.stopped()) return;
  NumericEvidence& evidence = found->second;
  Stopwatch watch(spent_s_);
  // Without any other evidence the search goes on whatever the budget.
  if (!evidence.comparisons.empty() && spent_s_ >= budget_s_) return;
  if (events_.show) events_.show(fmt::format("searching the overflow, {}", record.recipe->name), 0, 0);
  start_again(record, evidence,
              [&](Execution& execution) { replay_to(first_broken_update(record), execution, watch, evidence); });
}

void NumericsPass::replay_to(std::int64_t broken, Execution& execution, Stopwatch& watch, NumericEvidence& evidence) {
  while (execution.outcome().attempted + 1 < broken) {
    watch.update();
    if (events_.stopped() || (!evidence.comparisons.empty() && spent_s_ >= budget_s_)) return;
    execution.run_update(next_window(execution));
  }
  evidence.first_nonfinite = find_first_nonfinite(execution, next_window(execution));
  evidence.nonfinite_reason =
      evidence.first_nonfinite
          ? ""
          : fmt::format("update {} was not finite when it was timed and is finite when it is repeated", broken);
}

}  // namespace mixroof
