// Saving and loading the training state of a run's recipes: which folder belongs to which recipe, what must be equal to
// go on, when to save. DIR/<recipe>/ for each recipe; a folder that itself holds a state.json is loaded into every
// recipe.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "harness/execute/training_state.h"
#include "harness/measure/steps_pass.h"

namespace mixroof {

class RunStates {
 public:
  /// Reads and checks what `config` wants loaded. Throws UsageError when a state is missing, damaged, of another
  /// workload (the first difference named with both values), or stands at or beyond config.updates for every recipe;
  /// and when a folder to save in cannot be written, which must not be learnt after the training.
  RunStates(const RunConfig& config, const TokenData& data);
  ~RunStates();

  /// Choices made by timing when the states were saved; to be called before anything is prepared, so that results
  /// repeat.
  void replay_tuning(TuningRecord& tuning) const;

  /// The largest update among the loaded states, of whichever group of recipes; 0 when none was loaded.
  std::int64_t foremost() const;

  /// Puts the loaded state of record.recipe, if any, into an execution that was just initialized; the record then
  /// begins with the state's history. Throws UsageError when a conversion is refused.
  void restore(StepRecord& record, Execution& execution) const;

  /// Saves when it is time: after every config.save_every attempted updates.
  void after_update(const StepRecord& record, const Execution& execution);
  /// At the end of a recipe's updates, also after an interrupt: saves what the last update left, once.
  void at_end(const StepRecord& record, const Execution& execution);

 private:
  void make_folders() const;
  void load(const Recipe& recipe);
  void check_workload(const std::filesystem::path& folder, const TrainingState& state) const;
  void save(const StepRecord& record, const Execution& execution);

  const RunConfig& config_;
  std::vector<std::pair<std::string, std::string>> workload_;
  struct Loaded {
    std::filesystem::path folder;
    TrainingState state;
  };
  std::map<const Recipe*, Loaded> loaded_;
  std::map<const Recipe*, std::int64_t> saved_;  // update of the last save
  std::set<const Recipe*> finished_;             // at_end was called: a baseline runs again in each group
};

}  // namespace mixroof
