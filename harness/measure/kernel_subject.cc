#include "harness/measure/kernel_subject.h"

#include <stdexcept>
#include <utility>

namespace mixroof {
namespace {

// In-place operands drift with each repetition; a batch stays short enough that they keep their first magnitude.
constexpr std::int64_t kMostInPlaceRepetitions = 1000;

}  // namespace

KernelSubject::KernelSubject(Backend& backend, const Kernel& kernel, const Problem& problem, std::unique_ptr<Plan> plan,
                             CacheState cache, std::uint64_t seed)
    : backend_(backend),
      plan_(std::move(plan)),
      cache_(cache),
      scratch_(backend, kernel, problem, seed),
      warms_up_(cache == CacheState::hot && scratch_.bytes() <= 2 * backend.facts().last_level_cache_bytes()) {
  if (cache == CacheState::in_step) throw std::logic_error("KernelSubject: in_step is timed inside the update");
  backend_.reserve_marks(2);
}

void KernelSubject::prepare_sample() {
  if (warms_up_) backend_.run(*plan_, scratch_.operands(), scratch_.workspace());
  scratch_.restore();
  if (cache_ == CacheState::cold) backend_.chill();
}

double KernelSubject::run(std::int64_t repetitions) {
  backend_.synchronize();
  backend_.mark(0);
  for (std::int64_t i = 0; i < repetitions; ++i) backend_.run(*plan_, scratch_.operands(), scratch_.workspace());
  backend_.mark(1);
  backend_.synchronize();
  return backend_.seconds_between(0, 1);
}

std::int64_t KernelSubject::max_repetitions() const {
  if (cache_ == CacheState::cold) return 1;
  return scratch_.has_in_place_operands() ? kMostInPlaceRepetitions : Subject::max_repetitions();
}

Work work_of(const Cost& cost, bool emulated) {
  return {.flops = cost.useful_flops,
          .bytes_read = cost.bytes_read,
          .bytes_written = cost.bytes_written,
          .emulated = emulated};
}

}  // namespace mixroof
