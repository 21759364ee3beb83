// The memory pass: one recipe in a process of its own, each tensor an allocation of its own, so that the ledger sees
// classes and the system's view belongs to this recipe alone. No time is taken here.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "harness/execute/execution.h"

namespace mixroof {

struct MemoryObservation {
  // Planned (from the program) and counted (by the ledger, from allocations).
  std::int64_t live_planned = 0, arena_planned = 0, ledger_peak = 0, ledger_persistent = 0;
  BytesByClass persistent_by_class = {};  // planned
  BytesByClass ledger_by_class = {};      // alive between updates, counted
  std::int64_t activation_peak = 0, workspace_peak = 0;
  std::string peak_phase;
  // Seen by the system, as growth over the process before any tensor existed.
  std::int64_t observed_peak = 0, observed_persistent = 0, first_update_peak = 0;
  std::int64_t context_bytes = 0;  // resident before the libraries had run
  std::int64_t library_bytes = 0;  // grown by one warm-up update whose tensors are freed again
  std::string observer;            // "smaps_rollup"
  std::vector<std::int64_t> timeline;  // planned live bytes after each op
};

/// Runs one warm-up update in a throw-away execution, then `updates` observed ones. `program` is lowered anew for each.
MemoryObservation observe_memory(const std::function<Program()>& lower_program, Backend& backend,
                                 const std::vector<Window>& windows, std::uint64_t seed, double initial_loss_scale);

}  // namespace mixroof
