// Gradient of a bias: dbias[width] (+)= Σ over rows of dy[rows, width], summed in fp32 or wider, rounded once.
// Operands: dy, dbias (read_write when accumulating).
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

Problem bias_grad_problem(std::int64_t rows, std::int64_t width, Format dy, Format dbias, bool accumulate);

const Kernel& bias_grad_kernel();
std::span<const Implementation> bias_grad_cpu();

}  // namespace mixroof
