#include "harness/measure/run_states.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>

#include "harness/atomic_file.h"
#include "harness/measure/tool_facts.h"

namespace mixroof {
namespace {

namespace fs = std::filesystem;

/// What of a model its parameters' names and shapes do not tell.
std::string shape_of(const Model& m) {
  return fmt::format("{}: layers {} width {} heads {}/{} of {} hidden {} vocab {} context {} eps {} theta {}{}{}",
                     m.family, m.layers, m.width, m.heads, m.kv_heads, m.head_dim, m.hidden, m.vocab, m.context,
                     m.norm_eps, m.rope_theta, m.tied_head ? " tied" : "", m.qkv_bias ? " qkv bias" : "");
}

/// Everything that the numbers of an update depend on, but the recipe.
std::vector<std::pair<std::string, std::string>> workload_of(const RunConfig& config, const TokenData& data) {
  const AdamwConstants& adamw = config.lower.optimizer;
  const UpdateConstants& update = config.lower.update;
  const auto number = [](double value) { return fmt::format("{}", value); };
  std::vector<std::pair<std::string, std::string>> facts = {
      {"--model", config.model.name},
      {"model shape", shape_of(config.model)},
      {"data sha256", data.sha256()},
      {"--document-end", data.document_end() ? std::to_string(*data.document_end()) : "none"},
      {"--seed", std::to_string(config.seed)},
      {"--seq", std::to_string(config.batch.seq)},
      {"--micro-batch", std::to_string(config.batch.micro_batch)},
      {"--tokens-per-update", std::to_string(config.batch.tokens_per_update())},
      {"--accumulate-in", config.lower.accumulate_in_grads ? "grads" : "fp32"},
      {"--lr", number(update.learning_rate)},
      {"--clip", number(update.max_norm)},
      {"--schedule", std::to_string(static_cast<int>(update.schedule))},
      {"--warmup", number(update.warmup)},
      {"adamw", fmt::format("beta1 {} beta2 {} eps {} weight decay {}{}", adamw.beta1, adamw.beta2, adamw.eps,
                            adamw.weight_decay, config.lower.decay_all ? " on all" : "")},
      {"--loss-scale",
       fmt::format("{} from {}, {} to {}, growth after {}", config.lower.dynamic_scale ? "dynamic" : "static",
                   config.initial_loss_scale, update.floor, update.ceiling, update.growth_interval)},
      {"fp8 history and margin", fmt::format("{} {}", config.lower.fp8_history, config.lower.fp8_margin)}};
  // A constant rate does not know where training ends.
  if (update.schedule != Schedule::constant)
    facts.emplace_back("--updates (end of the schedule)", number(update.decay_updates));
  return facts;
}

std::vector<std::string> recipes_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (fs::exists(entry.path() / "state.json", ignored)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

RunStates::RunStates(const RunConfig& config, const TokenData& data)
    : config_(config), workload_(workload_of(config, data)) {
  make_folders();
  if (config.load_state.empty()) return;
  bool any_left = false;
  for (const Recipe* recipe : config.recipes) {
    load(*recipe);
    const TrainingState& state = loaded_.at(recipe).state;
    if (state.update > config.updates)
      throw UsageError(
          fmt::format("--updates {}: the saved state of {} in {} stands at update {}; give at least as many",
                      config.updates, state.recipe, loaded_.at(recipe).folder.string(), state.update));
    any_left = any_left || state.update < config.updates;
  }
  if (!any_left)
    throw UsageError(fmt::format("--updates {}: every saved state in {} stands there already; give more updates",
                                 config.updates, config.load_state));
}

RunStates::~RunStates() {
  // The file that a state was loaded from was kept while it might be needed again.
  for (const auto& [recipe, loaded] : loaded_) {
    const auto saved = saved_.find(recipe);
    std::error_code ignored;
    if (saved != saved_.end() && saved->second != loaded.state.update &&
        fs::equivalent(loaded.folder, fs::path(config_.save_state) / recipe->name, ignored))
      fs::remove(loaded.folder / loaded.state.tensors_file, ignored);
  }
}

void RunStates::make_folders() const {
  if (config_.save_state.empty()) return;
  for (const Recipe* recipe : config_.recipes) {
    const fs::path folder = fs::path(config_.save_state) / recipe->name;
    std::error_code error;
    fs::create_directories(folder, error);
    remove_abandoned(folder);
    if (!error && !AtomicFile(folder / "probe").is_open()) error = std::error_code(errno, std::generic_category());
    if (error)
      throw UsageError(
          fmt::format("--save-state {}: cannot write to {}: {}", config_.save_state, folder.string(), error.message()));
  }
}

void RunStates::load(const Recipe& recipe) {
  const fs::path folder = config_.load_state;
  const bool is_one_state = fs::exists(folder / "state.json");
  const fs::path own = is_one_state ? folder : folder / recipe.name;
  if (!is_one_state && !fs::exists(own / "state.json")) {
    const std::vector<std::string> there = recipes_in(folder);
    throw UsageError(
        there.empty()
            ? fmt::format("--load-state {}: holds no saved training state", folder.string())
            : fmt::format(
                  "--load-state {}: no state of recipe {}; there is {} (name one of these folders to convert it)",
                  folder.string(), recipe.name, fmt::join(there, ", ")));
  }
  Loaded loaded{own, load_training_state(own)};
  try {
    find_recipe(loaded.state.recipe);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: key 'recipe': {}", (own / "state.json").string(), error.what()));
  }
  check_workload(own, loaded.state);
  loaded_[&recipe] = std::move(loaded);
}

void RunStates::check_workload(const fs::path& folder, const TrainingState& state) const {
  for (const auto& [key, wanted] : workload_) {
    const auto found =
        std::find_if(state.workload.begin(), state.workload.end(), [&](const auto& fact) { return fact.first == key; });
    const std::string saved = found == state.workload.end() ? "nothing" : found->second;
    if (saved != wanted)
      throw UsageError(fmt::format("--load-state {}: was saved with {} {}, this run has {}; give the same",
                                   folder.string(), key, saved, wanted));
  }
}

void RunStates::replay_tuning(TuningRecord& tuning) const {
  for (const auto& [recipe, loaded] : loaded_)
    for (const auto& [problem, choice] : loaded.state.tuning) tuning.set(problem, choice);
}

std::int64_t RunStates::foremost() const {
  std::int64_t update = 0;
  for (const auto& [recipe, loaded] : loaded_) update = std::max(update, loaded.state.update);
  return update;
}

void RunStates::restore(StepRecord& record, Execution& execution) const {
  const auto found = loaded_.find(record.recipe);
  if (found == loaded_.end()) return;
  const auto& [folder, state] = found->second;
  record.resumed = Resumed{.from_update = state.update,
                           .recipe = state.recipe,
                           .conversions = restore_training_state(folder, state, execution)};
  record.loss = state.history.loss;
  record.grad_norm = state.history.grad_norm;
  record.loss_scale = state.history.loss_scale;
  record.overflowed = state.history.overflowed;
  record.last = execution.outcome();
}

void RunStates::after_update(const StepRecord& record, const Execution& execution) {
  // What a failed update left is no state to go on from: the one before stays.
  if (config_.save_state.empty() || config_.save_every == 0 || record.status != Status::ok) return;
  if (static_cast<std::int64_t>(record.loss.size()) % config_.save_every == 0) save(record, execution);
}

void RunStates::at_end(const StepRecord& record, const Execution& execution) {
  if (!config_.save_state.empty()) save(record, execution);
  finished_.insert(record.recipe);
}

void RunStates::save(const StepRecord& record, const Execution& execution) {
  const auto update = static_cast<std::int64_t>(record.loss.size());
  if (finished_.contains(record.recipe) || (saved_.contains(record.recipe) && saved_[record.recipe] == update)) return;
  TrainingState state;
  state.recipe = record.recipe->name;
  state.workload = workload_;
  state.update = update;
  state.history = {record.loss, record.grad_norm, record.loss_scale, record.overflowed};
  state.tuning = execution.backend().tuning().choices();
  state.tool_version = tool_json().at("version").get<std::string>();
  const auto loaded = loaded_.find(record.recipe);
  save_training_state(fs::path(config_.save_state) / record.recipe->name, std::move(state), execution,
                      loaded == loaded_.end() ? "" : loaded->second.state.tensors_file);
  saved_[record.recipe] = update;
}

}  // namespace mixroof
