// Conversion between formats, rounded once (numeric/codec.h). Operands: in[count], out[count]. No FLOPs are counted.
// The result is exactly round_to() of the input: limit 0. Recipes of the autocast family cast weights (case key
// role=0), the residual stream before a matrix product (role=1) and its gradient (role=2); the others cast nothing.
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

Problem cast_problem(std::int64_t count, Format in, Format out);

const Kernel& cast_kernel();
std::span<const Implementation> cast_cpu();

}  // namespace mixroof
