// Training state on disk, between two updates: DIR/state.json names DIR/tensors-<update>.safetensors with its digest
// and holds everything else. Both are written whole or not at all, the JSON last: a reader finds the state before or
// the state after.
//
// The tensors are those that the next window needs: parameters, masters, moments and the scaling state, the bytes as
// the device stores them. The control tensor among them holds the loss scaler and the clocks. The data position is the
// number of attempted updates: a window depends on its number alone. To add a value that training carries along: a
// persistent tensor of the program, and nothing here; anything else: TrainingState, state_json and state_of_json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness/backend/tuning.h"
#include "harness/execute/execution.h"

namespace mixroof {

/// Of every attempted update since the start of training.
struct TrainingHistory {
  std::vector<double> loss, grad_norm, loss_scale;
  std::vector<std::int64_t> overflowed;  // numbers of the updates that overflowed, from 1
};

struct TrainingState {
  std::string recipe;
  /// What must be equal to go on: names as people write them ("--seq", "data sha256") with their values, in order.
  std::vector<std::pair<std::string, std::string>> workload;
  std::int64_t update = 0;  // attempted
  TrainingHistory history;
  std::map<std::string, TuningChoice> tuning;
  std::string tool_version;
  // Filled by save and load.
  std::string tensors_file, tensors_sha256;
  std::int64_t tensors_bytes = 0;
};

/// Saves what `execution` holds. `folder` is made when it is missing; older tensor files in it are removed, but for
/// `keep`. Throws Error(failed) with the system's reason, Error(not_supported) for a device that stores formats in
/// another way.
void save_training_state(const std::filesystem::path& folder, TrainingState state, const Execution& execution,
                         const std::string& keep = {});

/// Reads and checks state.json, and that the tensor file beside it has the size and the digest it names. Throws
/// UsageError naming file, key, expected and found.
TrainingState load_training_state(const std::filesystem::path& folder);

/// Puts a loaded state into an execution that was just initialized. In its own recipe every tensor gets back its bytes.
/// In another recipe values are converted by the codecs: param and master from the saved master, or from param where
/// there is none; the scaling state stays as initialized but for clocks, and for the loss scale where both recipes
/// scale dynamically. Returns what was converted, a line each; empty in the same recipe. Throws UsageError naming the
/// tensor when one is missing or has another shape, or when finite values would not be finite in their new format, with
/// their number.
std::vector<std::string> restore_training_state(const std::filesystem::path& folder, const TrainingState& state,
                                                Execution& execution);

}  // namespace mixroof
