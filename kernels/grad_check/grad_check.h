// Finite check and squared norm of one gradient tensor in one pass.
//
// Operands: grad[count] (read), control fp64 (read_write). With accumulate=false control[grad_square_sum] is written and
// control[found_inf] is or-ed (an FP8 input may have raised it); with accumulate=true the sum is added to. Squares are
// summed in double, so finite fp32 input gives a finite sum. The order is fixed by count and worker count.
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

Problem grad_check_problem(std::int64_t count, Format grad, bool accumulate);

const Kernel& grad_check_kernel();
std::span<const Implementation> grad_check_cpu();

}  // namespace mixroof
