#include "harness/cli/run_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include "harness/cli/quantity.h"
#include "harness/status.h"

namespace mixroof::cli {
namespace {

[[noreturn]] void refuse(std::string_view option, std::string_view value, std::string_view remedy) {
  throw UsageError(fmt::format("{} {}: {}", option, value, remedy));
}

std::vector<std::string> words(const std::string& list) {
  std::vector<std::string> all;
  std::stringstream stream(list);
  for (std::string word; std::getline(stream, word, ',');) all.push_back(word);
  return all;
}

void set_parts(RunConfig& config, const std::string& parts) {
  static const std::array<std::string, 3> valid = {"ceilings", "kernels", "steps"};
  const std::vector<std::string> wanted = words(parts);
  for (const std::string& part : wanted)
    if (std::find(valid.begin(), valid.end(), part) == valid.end())
      throw_unknown("part", part, valid, "mixroof run --help");
  if (wanted.empty()) refuse("--parts", "''", "give one or more of ceilings, kernels, steps");
  const auto has = [&](const char* part) { return std::find(wanted.begin(), wanted.end(), part) != wanted.end(); };
  config.measure_ceilings = has("ceilings");
  config.measure_kernels = has("kernels");
  config.measure_steps = has("steps");
}

void set_batch(RunConfig& config, const RunOptions& o) {
  if (o.seq < 1) refuse("--seq", std::to_string(o.seq), "at least 1 position is needed");
  if (o.tokens_per_update < o.seq || o.tokens_per_update % o.seq != 0)
    refuse("--tokens-per-update", std::to_string(o.tokens_per_update),
           fmt::format("must be a multiple of --seq {}", o.seq));
  const std::int64_t sequences = o.tokens_per_update / o.seq;
  const std::int64_t micro_batch = o.micro_batch == 0 ? sequences : o.micro_batch;
  if (micro_batch < 1 || sequences % micro_batch != 0)
    refuse("--micro-batch", std::to_string(o.micro_batch),
           fmt::format("must divide the {} sequences of an update (--tokens-per-update {} / --seq {})", sequences,
                       o.tokens_per_update, o.seq));
  config.batch = {.micro_batch = micro_batch, .seq = o.seq, .micro_batches = sequences / micro_batch,
                  .packed = o.document_end.has_value()};
}

void set_loss_scale(RunConfig& config, const RunOptions& o) {
  UpdateConstants& update = config.lower.update;
  if (!(o.scale_floor > 0 && std::isfinite(o.scale_ceiling) && o.scale_floor <= o.scale_ceiling))
    refuse("--scale-floor", fmt::format("{:g} and --scale-ceiling {:g}", o.scale_floor, o.scale_ceiling),
           "must be above 0 and at most the ceiling");
  if (!(o.growth_interval >= 1 && o.growth_interval == std::floor(o.growth_interval)))
    refuse("--growth-interval", fmt::format("{:g}", o.growth_interval), "must be a whole number of updates, at least 1");
  update.floor = o.scale_floor;
  update.ceiling = o.scale_ceiling;
  update.growth_interval = o.growth_interval;
  config.lower.dynamic_scale = o.loss_scale == "dynamic";
  if (o.loss_scale == "dynamic")
    config.initial_loss_scale = o.init_scale;
  else if (o.loss_scale == "none")
    config.initial_loss_scale = 1;
  else
    config.initial_loss_scale = parse_number(o.loss_scale, "--loss-scale (dynamic, none or a number)");
  if (!(config.initial_loss_scale >= update.floor && config.initial_loss_scale <= update.ceiling))
    refuse("initial loss scale", fmt::format("{:g}", config.initial_loss_scale),
           fmt::format("must lie between --scale-floor {:g} and --scale-ceiling {:g}", update.floor, update.ceiling));
}

void set_update(RunConfig& config, const RunOptions& o) {
  UpdateConstants& update = config.lower.update;
  if (!(o.learning_rate > 0)) refuse("--lr", fmt::format("{:g}", o.learning_rate), "must be above 0");
  if (!(o.clip >= 0)) refuse("--clip", fmt::format("{:g}", o.clip), "must be a norm above 0, or 0 for no clipping");
  if (!(o.warmup >= 0)) refuse("--warmup", fmt::format("{:g}", o.warmup), "must be 0 or more updates");
  update.learning_rate = o.learning_rate;
  update.max_norm = o.clip;
  update.warmup = o.warmup;
  update.decay_updates = static_cast<double>(o.updates);
  static const std::array<std::string, 3> schedules = {"constant", "linear", "cosine"};
  const auto found = std::find(schedules.begin(), schedules.end(), o.schedule);
  if (found == schedules.end()) throw_unknown("schedule", o.schedule, schedules, "mixroof run --help");
  update.schedule = static_cast<Schedule>(found - schedules.begin());
}

}  // namespace

void declare_run_options(CLI::App& app, RunOptions& o) {
  app.add_option("--device", o.device, "cpu, reference or cuda[:N]")->capture_default_str();
  app.add_option("--model", o.model, "a name (mixroof list models) or a Hugging Face config.json")
      ->capture_default_str();
  app.add_option("--recipes", o.recipes,
                 "names (mixroof list recipes), 'main', or 'all' with variations and diagnostic ones")
      ->capture_default_str();
  app.add_option("--tokens-per-update", o.tokens_per_update, "positions of one update, the same for every recipe")
      ->capture_default_str();
  app.add_option("--seq", o.seq, "positions of one sequence")->capture_default_str();
  app.add_option("--micro-batch", o.micro_batch, "sequences of one forward and backward (default: all of an update)");
  app.add_option("--updates", o.updates,
                 "updates to attempt with every recipe; a short budget ends them earlier, for all alike")
      ->capture_default_str();
  app.add_option("--data", o.data,
                 "training text: any file (bytes as tokens) or a .bin token file (default: synthetic)");
  app.add_option("--vocab", o.vocab, "vocabulary of a .bin file without header");
  app.add_option("--document-end", o.document_end,
                 "token that ends a document (GPT-2's files: 50256): positions restart after it, attention and loss stay "
                 "within a document");
  app.add_option("--parts", o.parts, "what to measure")->capture_default_str();
  app.add_option("--budget", o.budget, "wall time of the run: 90s, 5m")->capture_default_str();
  app.add_option("--seed", o.seed, "of initial parameters, synthetic data and orders")->capture_default_str();
  app.add_option("--out", o.out, "result document (default: mixroof-<time>.json)");
  app.add_option("--loss-scale", o.loss_scale, "of recipes with loss scaling: dynamic, none or a fixed number")
      ->capture_default_str();
  app.add_option("--init-scale", o.init_scale, "where dynamic loss scaling starts")->capture_default_str();
  app.add_option("--scale-floor", o.scale_floor, "least dynamic loss scale; an overflow there ends the recipe")
      ->capture_default_str();
  app.add_option("--scale-ceiling", o.scale_ceiling, "largest dynamic loss scale; growth past it is not taken")
      ->capture_default_str();
  app.add_option("--growth-interval", o.growth_interval, "applied updates in a row before dynamic loss scaling doubles")
      ->capture_default_str();
  app.add_option("--clip", o.clip, "largest global gradient norm; 0: no clipping")->capture_default_str();
  app.add_option("--lr", o.learning_rate, "learning rate")->capture_default_str();
  app.add_option("--schedule", o.schedule, "constant, linear or cosine")->capture_default_str();
  app.add_option("--warmup", o.warmup, "applied updates of linear warm-up")->capture_default_str();
  app.add_option("--accumulate-in", o.accumulate_in,
                 "gradients of windows of several micro-batches: fp32 or grads (the recipe's format)")
      ->capture_default_str();
  app.add_option("--checkpointing", o.checkpointing,
                 "activations to compute again in the backward phase: none or layer (all but a layer's input)")
      ->capture_default_str();
  app.add_option("--save-state", o.save_state,
                 "folder for the training state of each recipe, saved between updates: at the end and on an interrupt");
  app.add_option("--save-every", o.save_every, "also after every so many updates (default: at the end only)");
  app.add_option("--load-state", o.load_state,
                 "go on from a folder of --save-state, bit for bit; the folder of one recipe is converted into every other. "
                 "--updates counts from the start of training");
  app.add_option("--memory-pass", o.memory_pass)->group("");
}

RunConfig make_config(const RunOptions& o, const std::vector<std::string>& command) {
  RunConfig config;
  config.device = o.device;
  config.model = find_model(o.model);
  config.recipes = parse_recipes(o.memory_pass.empty() ? o.recipes : o.memory_pass);
  set_batch(config, o);
  if (o.updates < 1) refuse("--updates", std::to_string(o.updates), "at least 1 is needed");
  config.updates = o.updates;
  set_loss_scale(config, o);
  set_update(config, o);
  static const std::array<std::string, 2> accumulators = {"fp32", "grads"};
  if (std::find(accumulators.begin(), accumulators.end(), o.accumulate_in) == accumulators.end())
    throw_unknown("--accumulate-in", o.accumulate_in, accumulators, "mixroof run --help");
  config.lower.accumulate_in_grads = o.accumulate_in == "grads";
  config.lower.checkpointing = find_checkpointing(o.checkpointing);
  set_parts(config, o.parts);
  config.budget_s = parse_duration_s(o.budget, "--budget");
  if (config.budget_s < 1) refuse("--budget", o.budget, "at least 1s is needed for a sample of everything");
  config.seed = o.seed;
  if (o.save_every < 0) refuse("--save-every", std::to_string(o.save_every), "must be 0 or more updates");
  if (o.save_every > 0 && o.save_state.empty()) refuse("--save-every", std::to_string(o.save_every), "needs --save-state DIR");
  config.save_state = o.save_state;
  config.save_every = o.save_every;
  config.load_state = o.load_state;
  config.command = command;
  config.workload_options =
      fmt::format("--device {} --model {} --tokens-per-update {} --seq {} --micro-batch {} --seed {}", o.device,
                  o.model, o.tokens_per_update, o.seq, config.batch.micro_batch, o.seed);
  if (!o.data.empty()) config.workload_options += fmt::format(" --data '{}'", o.data);
  if (o.document_end) config.workload_options += fmt::format(" --document-end {}", *o.document_end);
  if (o.checkpointing != "none") config.workload_options += fmt::format(" --checkpointing {}", o.checkpointing);
  return config;
}

TokenData open_data(const RunOptions& o, RunConfig& config) {
  std::optional<std::int64_t> vocab;
  if (o.vocab != 0) vocab = o.vocab;
  TokenData data = o.data.empty() ? TokenData::synthetic(config.model.vocab, o.seed, TokenData::kSyntheticTokens, o.document_end)
                                  : TokenData::from_file(o.data, config.model.vocab, vocab, o.document_end);
  data.require_window(config.batch.tokens_per_update());
  config.batch.attention_pairs = mean_attention_pairs(data, config.batch, config.updates);
  return data;
}

std::unique_ptr<Backend> open_device(const RunConfig& config) {
  BackendResult opened = open_backend(config.device);
  if (!opened.backend)
    throw Error(Status::no_device, fmt::format("--device {}: {}", config.device, opened.support.reason));
  return std::move(opened.backend);
}

}  // namespace mixroof::cli
