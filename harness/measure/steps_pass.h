// Whole updates of several recipes, interleaved in blocks: same tokens in the same order, same initial parameters, same
// number of attempted updates. Then a traced pass of each for in-step op times.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/execute/execution.h"
#include "harness/measure/run_config.h"
#include "harness/observe/op_trace.h"

namespace mixroof {

/// Updates at the start of training whose times are kept apart: caches, pages and branch predictors settle.
inline constexpr std::int64_t kWarmUpUpdates = 2;

/// What speed-ups and numerics are set against.
inline constexpr std::string_view kBaselineRecipe = "fp32";

class RunStates;

/// Where a recipe went on instead of starting.
struct Resumed {
  std::int64_t from_update = 0;
  std::string recipe;                    // whose state it was
  std::vector<std::string> conversions;  // empty: the same recipe, bit for bit
};

/// What one recipe did. Vectors are in the order of updates.
struct StepRecord {
  const Recipe* recipe = nullptr;
  Status status = Status::ok;
  std::string reason;
  std::vector<double> warm_up_s, applied_s, skipped_s;   // warm-up updates are in none of the other two
  std::array<std::vector<double>, kPhaseCount> phase_s;  // of the applied updates
  std::vector<double> block_median_s;                    // of applied updates, NaN for a block without one
  std::vector<double> baseline_block_median_s;           // of the baseline beside it, block by block; empty without one
  std::vector<double> loss, grad_norm, loss_scale;       // every attempted update since the start of training
  std::vector<std::int64_t> overflowed;                  // attempted updates (from 1) skipped for values that were not finite
  UpdateOutcome last;
  std::optional<Resumed> resumed;
  // Of the program, for roofs and tables.
  std::vector<Slice> slices;
  std::map<std::string, std::pair<std::string, bool>> implementations;  // by problem id: text, emulated
  bool emulated = false;
  std::map<std::string, std::string> formats;  // by tensor class
  std::int64_t dram_read = 0, dram_written = 0;
  // Traced updates.
  std::map<std::string, std::vector<double>> in_step_s;  // by problem id
  std::array<double, kCostCategoryCount> category_s = {};
  double recompute_s = 0, idle_s = 0, traced_sum_fraction = 0;
  std::int64_t traced_updates = 0;
};

/// An execution (arena placement) of record.recipe at the start of training, or where a loaded state of `states` (null: none)
/// stands; fills what the record says of the program. `parameters` as initial_parameters() gives them. Throws Error: not_supported, out_of_memory.
std::unique_ptr<Execution> open_execution(const RunConfig& config, Backend& backend,
                                          std::span<const std::vector<float>> parameters, StepRecord& record,
                                          const RunStates* states = nullptr);

/// Runs the update after the record's last one and records it. Returns its seconds. The record's status is failed
/// afterwards when training cannot go on.
double run_recorded_update(Execution& execution, const RunConfig& config, const TokenData& data, StepRecord& record);

struct StepsOptions {
  double budget_s = 60;               // of this pass; fewer updates are run when it ends, the same for every recipe
  std::int64_t updates_per_block = 2;
  std::int64_t traced_updates = 5;
  std::int64_t memory_bytes = 0;      // that the recipes of a group may plan for together; 0: four fifths of what is free
  RunStates* states = nullptr;        // loads and saves training state; null: neither
  /// Called for each recipe that can go on when its updates and traces are done and nothing of its group is timed any more.
  std::function<void(const StepRecord&, Execution&)> at_end = {};
};

/// Runs the recipes of `config` in groups that fit memory, FP32 in each when it was asked for. Recipes whose loaded states
/// stand behind the others' catch up first, untimed. `on_block` is called after
/// each round of blocks with all records so far. Recipes that cannot run have a status and a reason.
std::vector<StepRecord> run_steps(const RunConfig& config, const TokenData& data, Backend& backend, const StepsOptions& options,
                                  const RunEvents& events, const std::function<void(const std::vector<StepRecord>&)>& on_block);

/// Of every attempted update.
struct Trajectory {
  std::vector<double> loss, grad_norm;
};
/// FP32 on the same tokens from the same parameters, untimed: what the others are compared with when FP32 was not among the
/// recipes. Empty when it cannot run.
Trajectory fp32_trajectory(const RunConfig& config, const TokenData& data, Backend& backend, std::int64_t updates,
                           const RunEvents& events);

}  // namespace mixroof
