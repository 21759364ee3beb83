// Work sharing for CPU kernels: OpenMP with a fixed worker count and a static split, so that results repeat bit for bit.
// Every worker runs with round-to-nearest and without flush-to-zero (processor_state.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace mixroof {

/// Workers of parallel loops in this process; set once by the CPU backend, 1 before.
int worker_count();
void set_worker_count(int workers);

namespace detail {
void run_workers(int workers, void (*body)(void* state, int worker), void* state);
}

/// Calls f(worker, begin, end) once per worker that has work, with [0, count) split into contiguous ranges whose borders
/// are multiples of `grain`. Runs on the calling thread alone when count <= serial_below (default: one grain).
template <typename F>
void parallel_ranges(std::int64_t count, std::int64_t grain, F&& f, std::int64_t serial_below = 0) {
  if (count <= 0) return;
  const std::int64_t grains = (count + grain - 1) / grain;
  const int workers = count <= std::max(serial_below, grain)
                          ? 1
                          : static_cast<int>(std::min<std::int64_t>(worker_count(), grains));
  if (workers <= 1) {
    f(0, std::int64_t{0}, count);
    return;
  }
  struct State {
    std::int64_t count, grain, grains;
    int workers;
    std::remove_reference_t<F>* f;
  } state{count, grain, grains, workers, &f};
  detail::run_workers(
      workers,
      [](void* opaque, int worker) {
        auto& s = *static_cast<State*>(opaque);
        const std::int64_t begin = s.grains * worker / s.workers * s.grain;
        const std::int64_t end = std::min(s.count, s.grains * (worker + 1) / s.workers * s.grain);
        if (begin < end) (*s.f)(worker, begin, end);
      },
      &state);
}

}  // namespace mixroof
