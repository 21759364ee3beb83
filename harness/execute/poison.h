// Marks arena bytes that no live tensor holds, so that AddressSanitizer reports an op that touches them. Two files
// implement it and CMake picks one: in ordinary builds nothing happens.
#pragma once

#include <cstdint>

namespace mixroof {

bool poisons_dead_ranges();
void poison_range(void* begin, std::int64_t bytes);
void unpoison_range(void* begin, std::int64_t bytes);

}  // namespace mixroof
