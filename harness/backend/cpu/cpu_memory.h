// The CPU backend's allocator. Two files implement it and CMake picks one: whole pages from the system, so that resident
// memory follows what lives, and the heap under sanitizers, so that red zones surround each tensor.
#pragma once

#include <memory>

#include "harness/backend/backend.h"

namespace mixroof {

std::unique_ptr<MemoryResource> make_cpu_memory();

}  // namespace mixroof
