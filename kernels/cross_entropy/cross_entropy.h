// Softmax, cross entropy and its gradient in one sweep over the logits, in place.
//
// Operands: logits[rows,vocab] (read_write: becomes dlogits), targets int32[rows] (-1: no loss), losses fp32[rows]
// (write, natural logarithm, 0 where masked), control fp64 (read_write). dlogits = (softmax - onehot) · loss_scale /
// effective_tokens, 0 in masked rows: scaled at its source from the control tensor, rounded once. control[loss_sum] is
// written, or with `accumulate` added to, in double and in row order. Maximum and sum in fp32. Without effective tokens
// the gradient is 0. A masked row is not read. An infinity or NaN among the logits of a row that carries loss makes its
// loss and gradient NaN, so that the finite check sees it.
//
// FLOPs (fp32; comparisons are not counted, all rows are, since masks are data): 4 per logit (x - m, exponential, sum,
// times factor / sum) and 5 per row (logarithm, + m, - x_t, factor / sum, - factor at the target). The second sweep's
// exponentials are the first one's and not counted again. Bytes: every operand once.
//
// Error limit, with δ = 2^-24, m the maximum, s = Σ e^(x-m), h = Σ p |x - m| and f the factor: e^(x-m) in fp32 has a
// relative error of δ(|x - m|/2 + 2) (the subtraction is rounded, Exp is within 1 ulp), so s one of δ(h/2 + 2) plus
// what the additions of one chunk cost (up to 32δ in the worst case, about δ where errors are independent). The loss
// then stays within 16δ(1 + h), a gradient within 16δ·f·p(1 + |x - m| + h), at the target within 16δ·f(1 + h), each
// plus the rounding to the operand's format and, since e^(x-m) may be subnormal, 2^-149·f.
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

Problem cross_entropy_problem(std::int64_t rows, std::int64_t vocab, Format logits, bool accumulate);

const Kernel& cross_entropy_kernel();
std::span<const Implementation> cross_entropy_cpu();

}  // namespace mixroof
