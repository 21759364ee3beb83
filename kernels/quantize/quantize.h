// Per-tensor FP8 quantization in one of two ways; kernels/quantize/scale_rules.h has the rules of scales.
//
//   delayed  operands: x[count], scale fp32[1] (read), codes[count] (write), amax fp32[1], counts fp64[2] (read_write),
//            control fp64 (read_write). The scale is known beforehand; one pass gives the codes and the amax for the
//            next scale: max |x|, NaN or infinity when one is there; with `accumulate` the maximum with what amax holds
//            (a window's micro-batches), else written.
//   current  operands: x[count], scale fp32[1] (read_write: kept where the amax gives none), codes[count] (write),
//   counts
//            fp64[2] (read_write), scale_counts fp64[2] (read_write), control fp64 (read_write). The scale comes from
//            the very values: two passes. scale_counts[0] += scales kept, [1] += clamped to the largest float32.
// code = saturating encode of fp32(x · scale) (numeric/codec.h). counts[0] += values that saturated (current: by more
// than the roundings of a scale that was made for them), counts[1] += values that became zero though x was not. A
// non-finite x sets control[found_inf] to 1.
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

Problem quantize_problem(std::int64_t count, Format x, Format codes, bool accumulate);
Problem quantize_current_problem(std::int64_t count, Format x, Format codes);

const Kernel& quantize_kernel();
std::span<const Implementation> quantize_cpu();

}  // namespace mixroof
