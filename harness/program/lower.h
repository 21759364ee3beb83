// Lowering: from a model, a recipe, a batch and a target to a program. Pure; no device is touched.
// To add a model family: one file lower_<family>.cc and its line in lower.cc.
#pragma once

#include "harness/program/program.h"
#include "kernels/adamw/adamw.h"
#include "kernels/update_control/update_control.h"

namespace mixroof {

struct LowerOptions {
  AdamwConstants optimizer;
  bool decay_all = false;            // weight decay on every parameter, not on matrices only
  UpdateConstants update;            // betas are taken from `optimizer`, dynamic_scale from the recipe
  bool dynamic_scale = true;         // false: recipes with loss scaling keep their initial scale (static)
  bool accumulate_in_grads = false;  // windows of several micro-batches: keep 16-bit gradients instead of fp32
  std::int64_t fp8_history = 16;     // windows that delayed scaling remembers
  double fp8_margin = 0;
  Checkpointing checkpointing = Checkpointing::none;
};

/// Throws UsageError when the batch does not fit the model (a sequence longer than the context, a size below 1).
Program lower(const Model& model, const Recipe& recipe, const Batch& batch, const Target& target,
              const LowerOptions& options = {});

}  // namespace mixroof
