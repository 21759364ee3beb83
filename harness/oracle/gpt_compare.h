// A run of a variant against what the folder stores, and against another run of it.
#pragma once

#include "harness/oracle/comparison.h"
#include "harness/oracle/gpt_limits.h"
#include "harness/oracle/gpt_run.h"

namespace mixroof {

/// What all comparisons of a variant share.
struct GptCase {
  const OracleModel& model;
  const OracleVariant& variant;
  OracleEntry entry;  // of the variant
  std::vector<GptTensor> tensors;

  bool is_sharp() const { return entry.number("multiply_2d_params0_by") > 1; }
  double learning_rate() const { return variant.options.update.learning_rate; }
  /// Updates that anything is stored of: keys "after<u>/…" of the fingerprints, arrays and yardsticks.
  std::set<std::int64_t> states() const;
  /// Of the member "loss_on_window_1_after_update_<u>"; 0 when there is none.
  std::int64_t evaluate_after() const;
};

/// Double against everything stored: losses and norms to 1e-12, arrays, activations and fingerprints of every tensor.
void compare_gpt_double(const GptCase& c, const GptResult& got, Comparison& comparison);

/// fp32 against the double run by the rule 2 × max(yardstick, floor); elements whose first gradient is near zero may
/// move by 2·lr an update. Without a yardstick the floors alone count.
void compare_gpt_fp32(const GptCase& c, const GptResult& got, const GptResult& truth,
                      const std::optional<StoredYardstick>& yardstick, Comparison& comparison);

/// A narrow recipe against the double run by its yardstick. Returns the gradient error of the layer linears over the
/// yardstick's: about 1 when the recipe rounds as it says.
double compare_gpt_recipe(const GptCase& c, const GptResult& got, const GptResult& truth,
                          const StoredYardstick& yardstick, const GptFloors& floors, Comparison& comparison);

}  // namespace mixroof
