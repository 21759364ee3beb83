// Residual add: out[count] = stream[count] + branch[count], summed in fp32, rounded once. Operands: stream, branch,
// out. `out` may be one of the inputs when the formats are equal. FLOPs: one addition per element, fp32.
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

Problem residual_problem(std::int64_t count, Format stream, Format branch, Format out);

const Kernel& residual_kernel();
std::span<const Implementation> residual_cpu();

}  // namespace mixroof
