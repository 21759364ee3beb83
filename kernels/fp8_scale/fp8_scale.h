// Delayed scaling: the scales of all FP8 tensors from their amax histories, once per window.
//
// Operands: amax fp32[tensors] (read), history fp32[length,tensors] (read_write, newest row 0), limits fp32[tensors] (read:
// largest finite value of the tensor's format), scale fp32[tensors] (read_write), counts fp64[2] (read_write: [0] += scales kept,
// [1] += clamped). Constant: margin.
// The history moves by one row and takes amax; scale = fp32(limit / max(history)) / 2^margin; a maximum that is 0, infinite
// or NaN keeps the scale; an infinite quotient becomes the largest float32 (convention of NVIDIA Transformer Engine).
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

Problem fp8_scale_problem(std::int64_t tensors, std::int64_t history_length, double margin);

const Kernel& fp8_scale_kernel();
std::span<const Implementation> fp8_scale_cpu();

}  // namespace mixroof
