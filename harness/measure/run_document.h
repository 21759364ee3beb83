// From what a run measured to rows of the result document. Pure: records and ceilings in, JSON out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/measure/kernels_pass.h"
#include "harness/measure/numerics_pass.h"
#include "harness/measure/run_config.h"
#include "harness/measure/steps_pass.h"
#include "harness/observe/memory_pass.h"
#include "harness/result/document.h"
#include "harness/roofline/roofline.h"

namespace mixroof {

Json ceiling_json(const Ceiling& ceiling);
Json workload_json(const RunConfig& config, const TokenData& data, std::int64_t updates, double effective_tokens_per_update);
Json tuning_json(const TuningRecord& tuning);
void read_tuning(const Json& tuning, TuningRecord& record);

/// Rows of one kernel: per use and cache state. `in_step` holds the op times of each recipe's traced updates.
std::vector<Json> kernel_json(const KernelRecord& record, const Roofline& roofline, const RunConfig& config);
/// The row of a problem inside a recipe's traced updates.
Json in_step_json(const StepRecord& step, const Slice& slice, const Roofline& roofline, const RunConfig& config);

/// The row of a recipe. `fp32`: empty when unknown. `evidence`: null until the numerics pass is done; `memory` likewise.
Json step_json(const StepRecord& step, const Trajectory& fp32, const NumericEvidence* evidence,
               const std::optional<MemoryObservation>& memory, const Roofline& roofline, const RunConfig& config);
Json memory_json(const MemoryObservation& seen, std::int64_t parameters);
MemoryObservation read_memory(const Json& memory);

}  // namespace mixroof
