// The numerics pass: what each recipe lost, seen beside FP32 on equal inputs at the start of training and again at the
// end of its updates, and where the first value that is not finite came from. Nothing is timed while it watches.
// Whatever the budget, each recipe is compared once: at the end of its updates, or at the start when it cannot go on.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/measure/steps_pass.h"
#include "harness/observe/fp8_counts.h"
#include "harness/observe/update_comparison.h"

namespace mixroof {

/// What the pass found about one recipe.
struct NumericEvidence {
  std::vector<UpdateComparison> comparisons;  // applied updates, in their order
  std::string not_compared;                   // why there are fewer than two
  std::optional<Place> first_nonfinite;
  std::string nonfinite_reason;  // why that is unknown though something was not finite
  std::optional<Fp8Counts> fp8;  // of all updates so far
};

/// The attempted update (from 1) that is compared at the start: the first that was applied; with delayed FP8 scales the
/// first after they have seen a window, since they start at 1. `first` is the first update of this run, `overflowed`
/// those that were skipped. Nothing when no update of first … last is left.
std::optional<std::int64_t> first_settled_update(const Recipe& recipe, const std::vector<std::int64_t>& overflowed,
                                                 std::int64_t first, std::int64_t last);

class NumericsPass {
 public:
  NumericsPass(const RunConfig& config, const TokenData& data, Backend& backend, const RunEvents& events,
               double budget_s);

  /// Compares the next update of an execution whose updates have been timed.
  void observe_end(const StepRecord& record, Execution& execution);
  /// Trains the recipe anew up to its first settled update, which is compared.
  void observe_start(const StepRecord& record);
  /// Trains the recipe anew up to the first update that was not finite, unless it has been seen. To be called when every
  /// recipe has been compared: it can take as many updates as were timed.
  void locate_nonfinite(const StepRecord& record);

  /// Null for a recipe that was not looked at.
  const NumericEvidence* find(const Recipe& recipe) const;

 private:
  class Stopwatch;
  /// Throws Error when FP32 cannot be there beside it.
  void compare(const Recipe& recipe, Execution& execution, NumericEvidence& evidence);
  /// Runs `body` on the recipe at the start of training; what does not fit or is not supported goes into the evidence.
  void start_again(const StepRecord& record, NumericEvidence& evidence, const std::function<void(Execution&)>& body);
  void compare_from_start(const StepRecord& record, Execution& execution, Stopwatch& watch, NumericEvidence& evidence);
  void replay_to(std::int64_t broken, Execution& execution, Stopwatch& watch, NumericEvidence& evidence);
  bool has_time(NumericEvidence& evidence) const;
  Window next_window(const Execution& execution) const;

  const RunConfig& config_;
  const TokenData& data_;
  Backend& backend_;
  const RunEvents& events_;
  double budget_s_, spent_s_ = 0;
  std::map<std::string_view, NumericEvidence> evidence_;  // by recipe
};

}  // namespace mixroof
