// Matrix products of a linear layer, row-major, accumulated in fp32. Weights are [out, in].
//
//   forward  c[m,n] = a[m,k] · b[n,k]ᵀ (+ bias[n])      activations × weights
//   dgrad    c[m,n] = a[m,k] · b[k,n]                    output gradients × weights
//   wgrad    c[m,n] (+)= a[k,m]ᵀ · b[k,n]                output gradients × activations; accumulate adds to c, rounded once
//
// Operands: a, b, [bias], [scale_a fp32[1], scale_b fp32[1]], c. The scales are there when a is FP8: codes hold
// value × scale, so the product is divided by both. FLOPs are 2·m·n·k, booked under the format of a (the narrower product
// of an e5m2 gradient with e4m3 values is booked under fp8_e5m2).
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

enum class MatmulVariant : std::uint8_t { forward, dgrad, wgrad };

struct MatmulShape {
  std::int64_t m = 0, n = 0, k = 0;
};

/// `bias` only with forward. `bias_format` is ignored without bias.
Problem matmul_problem(MatmulVariant variant, const MatmulShape& shape, Format a, Format b, Format c, bool bias = false,
                       Format bias_format = Format::fp32, bool accumulate = false);

const Kernel& matmul_kernel();
std::span<const Implementation> matmul_cpu();

}  // namespace mixroof
