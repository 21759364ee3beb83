// Was the update of a recipe still the intended one? A pure function of its figures and the documented limits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "harness/numeric/recipe.h"
#include "harness/observe/numerics_limits.h"

namespace mixroof {

enum class VerdictKind : std::uint8_t { ok, degraded, diverged };
std::string_view name(VerdictKind kind);

/// What is judged: of several compared updates the worst of each figure. Unknown figures are not judged.
struct NumericFigures {
  std::int64_t updates = 0, overflows = 0;  // attempted; skipped for values that were not finite
  std::int64_t last_quarter = 0, last_quarter_overflows = 0;
  bool state_nonfinite = false;                 // a parameter or moment
  bool scale_exhausted = false;                 // overflow at the floor of the loss scale
  bool loss_nonfinite = false;                  // in the last quarter
  std::optional<double> loss_rel_diff;          // of the means over the last quarter
  std::optional<double> loss_rel_diff_applied;  // the same at equal applied updates: without the lag of skipped ones
  std::optional<double> grad_rel_l2, grad_cosine, update_rel_l2;
  std::optional<double> update_rms_over_lr;  // in learning rates
  double adamw_step_bound = 0;               // what exact AdamW never passes, in learning rates
  std::optional<double> underflow_felt;      // share of weight gradients that AdamW would have felt and that are zero
  std::optional<double> subnormal;           // share of gradient values stored with fewer bits than the format has
  std::optional<double> moment2_underflow;
  std::optional<double> absorbed, saturated;
};

struct Verdict {
  VerdictKind kind = VerdictKind::ok;
  /// One sentence: each loss with its figure and its limit, the gravest first, three at most; empty when ok.
  std::string reason;
};

Verdict judge(const NumericFigures& figures, const Recipe& recipe, const NumericsLimits& limits);

}  // namespace mixroof
