// The numerics section of a step's row (DESIGN.md §7): from what the passes saw to figures, a verdict and JSON. Pure.
#pragma once

#include "harness/measure/numerics_pass.h"
#include "harness/observe/verdict.h"
#include "harness/result/document.h"

namespace mixroof {

/// Relative difference of the mean losses over the last quarter of the updates (at least one), without sign. A mean
/// over updates instead of the largest: single windows differ by their own noise. NaN when a loss of it is not finite;
/// nothing without a reference.
std::optional<double> late_loss_difference(const std::vector<double>& loss, const std::vector<double>& reference);
/// The same against the reference's loss after as many applied updates: what is left when a recipe lags by the updates
/// that it skipped. `skipped`: positions in `loss`, ascending.
std::optional<double> late_loss_difference_at_equal_applied(const std::vector<double>& loss,
                                                            const std::vector<double>& reference,
                                                            const std::vector<std::size_t>& skipped);

/// What the verdict reads. `evidence` null: no update was compared.
NumericFigures figures_of(const StepRecord& step, const Trajectory& fp32, const NumericEvidence* evidence);

/// `fp32`: empty when unknown. `initial_scale`: the loss scale at the start.
Json numerics_json(const StepRecord& step, const Trajectory& fp32, const NumericEvidence* evidence,
                   double initial_scale, std::int64_t layers);

}  // namespace mixroof
