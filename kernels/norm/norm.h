// Layer norm and RMS norm over rows, biased variance, statistics in fp32 (two-pass or as good).
//
//   forward  operands: x[rows,width], weight[width], bias[width], y[rows,width], mean[rows] fp32, rstd[rows] fp32
//   backward operands: dy, x, weight, mean, rstd, dresidual[rows,width], dx, dweight[width], dbias[width]
//   rms_forward  operands: x, weight, y, rstd fp32;   rms_backward operands: dy, x, weight, rstd, dresidual, dx, dweight
//   RMSNorm (arXiv 1910.07467): no mean, no bias; rstd = 1/√(Σx²/width + eps)
// dx = gradient through the norm + dresidual (flag residual=1; with residual=0 the operand is absent): summed in fp32
// and rounded once. `accumulate` concerns dweight and dbias, which are then read_write. Constant: eps.
//
// With x̂ = (x - mean)·rstd and g = dy·weight: y = x̂·weight + bias; dx = rstd·(g - Σg/width - x̂·Σ(g·x̂)/width);
// dweight = Σ_rows dy·x̂, dbias = Σ_rows dy. Backward takes mean and rstd as given. RMS norm: x̂ = x·rstd, y = x̂·weight,
// dx = rstd·(g - x̂·Σ(g·x̂)/width).
//
// FLOPs (fp32; each add, multiply, divide and root is one): forward 8 per element (sum; centre, square, add; centre and
// scale; weight and bias) and 5 per row (two means, eps, root, reciprocal). Backward 13 per element (x̂ 2; g 1; two sums
// 3; dx 4; dweight 2; dbias 1), one more with residual, 2 divisions per row, and 2·width when accumulating.
// RMS norm forward: 4 per element (square, add; scale; weight) and 4 per row; backward 9 per element (x̂ 1; g 1; sum 2;
// dx 3; dweight 2), one more with residual, 1 division per row, and width when accumulating.
//
// Error limit: with δ = 2^-24 a sum of n terms, made of vector partial sums, is taken to err by at most 16δ times the
// sum of magnitudes; m = Σ|x|/width, xa = |weight|·rstd·m:
//   mean 16δ·m;  rstd 16δ·rstd·(1 + 8δ(m·rstd)²), the second term being the mean's own error squared in the variance;
//   y    32δ·(xa + |x̂·weight|·(1 + 16δ(m·rstd)²) + |bias|)
//   dx   32δ·(rstd·(|g| + Σ|g|/width + |x̂|·Σ|g·x̂|/width) + |dresidual|)
//   dweight, dbias  (8 + √rows)·δ·(Σ|terms| + |what was there|): sums over rows have no partial sums, their error grows
//   as a random walk (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019)
// each plus the rounding to the output's format. RMS norm has no mean that could err: m = 0 in the limits of rstd and y,
// and the term Σ|g|/width of dx is absent.
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

Problem norm_forward_problem(std::int64_t rows, std::int64_t width, Format x, Format params, Format y, double eps);
Problem norm_backward_problem(std::int64_t rows, std::int64_t width, Format dy, Format x, Format params, Format dx,
                              Format grads, bool residual, bool accumulate, double eps);

Problem rms_norm_forward_problem(std::int64_t rows, std::int64_t width, Format x, Format params, Format y, double eps);
Problem rms_norm_backward_problem(std::int64_t rows, std::int64_t width, Format dy, Format x, Format params, Format dx,
                                  Format grads, bool residual, bool accumulate, double eps);

const Kernel& norm_kernel();
std::span<const Implementation> norm_cpu();

}  // namespace mixroof
