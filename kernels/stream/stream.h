// Memory streams over fp32 arrays (McCalpin's STREAM and a pure read): what bandwidth ceilings are measured with.
//   read  operands: a[count], sum fp32[1]           sum = Σ a (order free; only there so that the reads happen)
//   copy  operands: a, c       c = a
//   scale operands: a, c       c = 3·a
//   add   operands: a, b, c    c = a + b
//   triad operands: a, b, c    c = a + 3·b
//   write operands: c          c = 1
// Shape: count and nontemporal (1: stores past the cache). Bytes count each array once (no write-allocate).
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

Problem stream_problem(std::string_view variant, std::int64_t count, bool nontemporal);

const Kernel& stream_kernel();
std::span<const Implementation> stream_cpu();

}  // namespace mixroof
