// Matrix products of a linear layer, row-major, accumulated in fp32. Weights are [out, in].
//
//   forward  c[m,n] = a[m,k] · b[n,k]ᵀ (+ bias[n])      activations × weights
//   dgrad    c[m,n] = a[m,k] · b[k,n]                    output gradients × weights
//   wgrad    c[m,n] (+)= a[k,m]ᵀ · b[k,n]                output gradients × activations; accumulate adds to c, rounded once
//
// Operands: a, b, [bias], [scale_a, scale_b], c. The scales are there when a is FP8. Per tensor, fp32[1] each: codes hold
// value × scale, so the product is divided by both. By blocks of `block` values along k (shape key block > 0): scale_a and
// scale_b are the scale_inv of kernels/quantize_blocks, fp32 or e8m0, [m or n, blocks of k] where the operand's rows run along k,
// else [blocks of k, m or n]; an operand's value is fp32(code · scale_inv). FLOPs are 2·m·n·k, booked under the format of a (the narrower product
// of an e5m2 gradient with e4m3 values is booked under fp8_e5m2). Padded FLOPs are those of m, n and k rounded up to the
// multiples that the problem was made with (keys multiple_m, …: what a device asks of FP8 products; absent: 1).
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

enum class MatmulVariant : std::uint8_t { forward, dgrad, wgrad };

struct MatmulShape {
  std::int64_t m = 0, n = 0, k = 0;
};

/// Block scales of an FP8 product; block 0: one scale a tensor.
struct MatmulScales {
  std::int64_t block = 0;
  Format format = Format::fp32;
};

/// `bias` only with forward. `bias_format` is ignored without bias.
Problem matmul_problem(MatmulVariant variant, const MatmulShape& shape, Format a, Format b, Format c, bool bias = false,
                       Format bias_format = Format::fp32, bool accumulate = false, const MatmulScales& scales = {});
/// The same problem for a device that pads FP8 products to multiples of m, n and k; unchanged where nothing is FP8 or every
/// multiple is 1.
Problem with_multiples(Problem problem, const std::array<std::int64_t, 3>& multiples);

const Kernel& matmul_kernel();
std::span<const Implementation> matmul_cpu();

}  // namespace mixroof
