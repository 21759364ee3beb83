// FP8 quantization with one scale for each block of values along a product's reduction, made of the block's own values
// (kernels/quantize/scale_rules.h). A block is `block` values in a row (along_rows=1) or in a column (along_rows=0);
// the last of a line is shorter; a block as long as the line is a scale per row or column.
//
// Operands: x[rows,width], codes[rows,width] (write), scale_inv (write): [rows, blocks of a row] or [blocks of a
// column, width], fp32, or e8m0 for MXFP8; counts fp64[2], scale_counts fp64[2], control fp64 (read_write). code =
// saturating encode of fp32(x · scale); value = fp32(decode(code) · scale_inv). counts[0] += values that saturated by
// more than the roundings of their own scale (infinities), [1] += values that became zero though x was not;
// scale_counts[0] += blocks whose amax gave no scale (zeros, non-finite), [1] += scales clamped to the largest float32.
// A non-finite x sets control[found_inf] to 1. FLOPs (fp32): one per element, the multiplication by the scale.
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

struct BlockShape {
  std::int64_t rows = 0, width = 0;
  std::int64_t block = 0;  // values that share a scale
  bool along_rows = true;  // blocks lie in rows, which the product sums over
};

/// `scale_inv` is fp32 or e8m0. Throws UsageError naming the dimension when the shape is impossible.
Problem quantize_blocks_problem(const BlockShape& shape, Format x, Format codes, Format scale_inv);

const Kernel& quantize_blocks_kernel();
std::span<const Implementation> quantize_blocks_cpu();

}  // namespace mixroof
