// A variant of an oracle's model, run by the product: lowered in a recipe, executed, and read back by the oracle's
// names.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "harness/execute/oracle_model.h"

namespace mixroof {

/// One of the oracle's parameters, in the order of its manifest.
struct GptTensor {
  std::string name;
  bool is_layer_linear = false;  // two dimensions, inside a layer
};
std::vector<GptTensor> gpt_tensors(const OracleModel& model);

using TensorValues = std::vector<std::vector<double>>;  // one per GptTensor

struct GptState {
  TensorValues params, moment1, moment2;  // masters where the recipe has them
};

struct GptResult {
  std::vector<UpdateOutcome> outcomes;     // one a window
  TensorValues grads;                      // of the first window, unscaled, before clipping
  std::map<std::int64_t, GptState> after;  // by updates done
  std::map<std::int64_t, double> first_window_loss_after;
  /// Of the first micro-batch: "logits", "embedding", "final_norm", "0.after_attention", "0.after_mlp", …
  std::map<std::string, std::vector<double>> activations;
};

struct GptRunOptions {
  double loss_scale = 1;               // fixed
  bool rehearse = false;               // each window runs once before, of which only FP8 scales and histories stay
  std::set<std::int64_t> states = {};  // updates after which the state is read
  std::int64_t evaluate_after = 0;     // updates after which the first window's loss is taken once more; 0: never
  bool activations = false;
};

/// Throws Error(not_supported) with the reason when the backend does not run the recipe.
GptResult run_gpt(const OracleModel& model, const OracleVariant& variant, const Recipe& recipe, Backend& backend,
                  const GptRunOptions& options);

}  // namespace mixroof
