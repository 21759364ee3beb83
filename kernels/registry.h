// Every kernel of the build, from the lines of kernels/CMakeLists.txt (registry.cc is generated from them).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kernels/kernel.h"

namespace mixroof {

std::span<const Kernel* const> all_kernels();
const Kernel& find_kernel(std::string_view name);  // throws UsageError with near names
/// CPU implementations of every kernel.
std::span<const Implementation> cpu_implementations();

}  // namespace mixroof
