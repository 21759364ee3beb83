#include "harness/observe/memory_pass.h"

#include <malloc.h>

#include <algorithm>

#include "harness/backend/host.h"
#include "harness/execute/initialization.h"
#include "harness/observe/ledger.h"

namespace mixroof {
namespace {

std::int64_t resident_bytes() { return read_process_memory().rss_bytes; }

/// Reads the resident size when an op has run and nothing of it is freed yet: the moment at which most is alive.
class ResidentPeak : public OpObserver {
 public:
  void before(const Op&) override {}
  void after(const Op&) override { peak_ = std::max(peak_, resident_bytes()); }
  std::int64_t peak() const { return peak_; }

 private:
  std::int64_t peak_ = 0;
};

void start(Execution& execution, std::uint64_t seed, double initial_loss_scale) {
  execution.initialize(initial_parameters(execution.program().model, seed), initial_loss_scale);
  malloc_trim(0);
}

}  // namespace

MemoryObservation observe_memory(const std::function<Program()>& lower_program, Backend& backend,
                                 const std::vector<Window>& windows, std::uint64_t seed, double initial_loss_scale) {
  // Freed host arrays go back to the system at once, so that they are not taken for tensors.
  mallopt(M_MMAP_THRESHOLD, 64 * 1024);
  MemoryObservation seen;
  seen.observer = "smaps_rollup";
  seen.context_bytes = resident_bytes();
  {
    Execution warm_up(lower_program(), backend, Placement::per_tensor);
    start(warm_up, seed, initial_loss_scale);
    warm_up.run_update(windows.front());
  }
  malloc_trim(0);
  const std::int64_t baseline = resident_bytes();
  seen.library_bytes = baseline - seen.context_bytes;

  Ledger ledger(backend.memory());
  Execution execution(lower_program(), backend, Placement::per_tensor, &ledger);
  start(execution, seed, initial_loss_scale);
  seen.observed_persistent = resident_bytes() - baseline;
  seen.ledger_persistent = ledger.current_bytes();
  seen.ledger_by_class = ledger.current();
  ledger.reset_peak();

  ResidentPeak resident;
  execution.set_observer(&resident);
  for (const Window& window : windows) {
    execution.run_update(window);
    if (seen.first_update_peak == 0) seen.first_update_peak = resident.peak() - baseline;
  }
  seen.observed_peak = resident.peak() - baseline;
  seen.ledger_peak = ledger.peak_bytes();

  const BytePlan& plan = execution.bytes();
  seen.live_planned = plan.live_peak;
  seen.arena_planned = plan.arena_bytes;
  seen.persistent_by_class = plan.persistent;
  seen.activation_peak = plan.activation_peak;
  seen.workspace_peak = plan.workspace_peak;
  seen.peak_phase = name(plan.peak_phase);
  for (const BytePlan::Sample& sample : plan.timeline) seen.timeline.push_back(sample.live);
  return seen;
}

}  // namespace mixroof
