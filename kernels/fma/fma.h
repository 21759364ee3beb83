// Arithmetic intensity sweep: x[count] is read, `fmas` fused multiply-adds are applied to each element, y[count] written:
// x ← x·0.5 + 0.25 repeated. The same code from memory-bound to compute-bound, for the roofline's slope and knee.
// Operands: x, y (fp32). Shape: count, fmas. FLOPs: 2·fmas·count.
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

Problem fma_problem(std::int64_t count, std::int64_t fmas);

const Kernel& fma_kernel();
std::span<const Implementation> fma_cpu();

}  // namespace mixroof
