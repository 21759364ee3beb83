#include "harness/backend/cpu/parallel.h"

#include <omp.h>

#include "harness/backend/cpu/processor_state.h"

namespace mixroof {
namespace {
int workers_of_process = 1;
}

int worker_count() { return workers_of_process; }

void set_worker_count(int workers) {
  workers_of_process = std::max(workers, 1);
  omp_set_dynamic(0);
  omp_set_num_threads(workers_of_process);
}

void detail::run_workers(int workers, void (*body)(void* state, int worker), void* state) {
#pragma omp parallel num_threads(workers)
  {
    set_processor_state();
    // The runtime may give fewer threads than asked for; the split, and with it the result, stays the same.
    for (int worker = omp_get_thread_num(); worker < workers; worker += omp_get_num_threads()) body(state, worker);
  }
}

}  // namespace mixroof
