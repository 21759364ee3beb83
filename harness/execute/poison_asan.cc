#include <sanitizer/asan_interface.h>

#include "harness/execute/poison.h"

namespace mixroof {

bool poisons_dead_ranges() { return true; }
void poison_range(void* begin, std::int64_t bytes) { __asan_poison_memory_region(begin, static_cast<std::size_t>(bytes)); }
void unpoison_range(void* begin, std::int64_t bytes) {
  __asan_unpoison_memory_region(begin, static_cast<std::size_t>(bytes));
}

}  // namespace mixroof
