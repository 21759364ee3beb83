// Per-tensor FP8 quantization with a scale known beforehand, and the amax for the next one, in one pass.
//
// Operands: x[count], scale fp32[1] (read), codes[count] (write), amax fp32[1], counts fp64[2] (read_write), control fp64
// (read_write).
// code = saturating encode of fp32(x · scale) (numeric/codec.h). amax = max |x| over finite x, NaN or infinity when one
// is there; with `accumulate` the maximum with what amax holds (a window's micro-batches), else written. counts[0] += values
// that saturated, counts[1] += values that became zero though x was not. A non-finite x sets control[found_inf] to 1.
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

Problem quantize_problem(std::int64_t count, Format x, Format codes, bool accumulate);

const Kernel& quantize_kernel();
std::span<const Implementation> quantize_cpu();

}  // namespace mixroof
