// What one run was asked to do.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "harness/execute/token_data.h"
#include "harness/numeric/recipe.h"
#include "harness/program/lower.h"

namespace mixroof {

struct RunConfig {
  std::string device = "cpu";
  Model model;
  std::vector<const Recipe*> recipes;
  Batch batch;
  std::int64_t updates = 0;         // attempted, of every recipe, since the start of training
  LowerOptions lower;
  double initial_loss_scale = 65536;  // of recipes with loss scaling; the others have 1
  bool measure_ceilings = true, measure_kernels = true, measure_steps = true;
  double budget_s = 120;            // wall time of the whole run
  std::uint64_t seed = 1;
  std::string save_state, load_state;  // folders of training state; empty: none
  std::int64_t save_every = 0;      // attempted updates between saves; 0: at the end only
  std::vector<std::string> command; // as typed, for the document
  /// Options that repeat this workload ("--model gpt2-10m --seq 128 …"), for repro lines.
  std::string workload_options;

  double loss_scale_of(const Recipe& recipe) const {
    return recipe.loss_scaling == LossScaling::dynamic ? initial_loss_scale : 1.0;
  }
  Program lower_for(const Recipe& recipe, const Target& target) const {
    return mixroof::lower(model, recipe, batch, target, lower);
  }
};

/// How a run tells what it does. Every member may be empty.
struct RunEvents {
  std::function<void(const std::string& what, std::size_t done, std::size_t total)> show;
  std::function<void(const std::string& line)> finish_case;
  std::function<bool()> stop;             // true: finish the current sample and end
  bool stopped() const { return stop && stop(); }
};

/// The window of one update; the same for every recipe.
inline Window window_of(const RunConfig& config, const TokenData& data, std::int64_t update) {
  return data.window(update, config.batch.micro_batches, config.batch.micro_batch, config.batch.seq);
}

}  // namespace mixroof
