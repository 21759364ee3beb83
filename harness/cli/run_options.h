// Options of `mixroof run`, from words to a RunConfig; shared with what runs the same workload in another process.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/measure/run_config.h"

namespace mixroof::cli {

struct RunOptions {
  std::string device = "cpu", model = "gpt2-10m", recipes = "main", data, parts = "ceilings,kernels,steps",
              budget = "120s", out;
  std::string loss_scale = "dynamic", schedule = "constant", accumulate_in = "fp32", checkpointing = "none";
  std::int64_t tokens_per_update = 512, seq = 128, micro_batch = 0, updates = 24, vocab = 0;
  std::optional<std::int64_t> document_end;
  std::uint64_t seed = 1;
  double init_scale = 65536, scale_floor = 1, scale_ceiling = 16777216, growth_interval = 2000;
  double clip = 1.0, learning_rate = 3e-4, warmup = 0;
  std::string save_state, load_state;
  std::int64_t save_every = 0;
  std::string memory_pass;  // hidden: only the memory pass of this recipe, JSON on stdout
};

void declare_run_options(CLI::App& app, RunOptions& options);

/// Throws UsageError naming option, value and remedy.
RunConfig make_config(const RunOptions& options, const std::vector<std::string>& command);
/// Also counts what attention meets in packed documents, into config.batch.
TokenData open_data(const RunOptions& options, RunConfig& config);
/// Throws Error(no_device) with the reason.
std::unique_ptr<Backend> open_device(const RunConfig& config);

}  // namespace mixroof::cli
