// Activations, computed in fp32.
//
// GELU, tanh form (arXiv 1606.08415): y = x/2 · (1 + tanh(√(2/π)(x + 0.044715 x³))).
//   gelu             operands: x[count], y[count]
//   gelu_backward    operands: dy[count], x[count], dx[count]
// SwiGLU (arXiv 2002.05202): y = silu(gate)·up, silu(t) = t·σ(t). In gate_up[rows, 2·width] a row holds the gate's columns,
// then up's, and so does dgate_up.
//   swiglu           operands: gate_up, y[rows,width]
//   swiglu_backward  operands: dy[rows,width], gate_up, dgate_up
//   dgate = dy·up·σ(1 + gate·(1 - σ)),   dup = dy·gate·σ,   σ = σ(gate)
//
// GELU: with u = √(2/π)(x + 0.044715 x³) and the logistic σ(t) = 1/(1 + e^-t), (1 + tanh u)/2 = σ(2u): reference and kernels use
//   y = x·σ(2u),   dx = dy·(σ(2u) + x·σ(2u)(1 - σ(2u))·2u'),   u' = √(2/π)(1 + 3·0.044715 x²),
// which does not cancel where tanh u is near -1.
//
// FLOPs (fp32, each add, multiply, divide and exponential is one, a fused multiply-add two): 9 per element forward (x²; a
// multiply-add; times x; times √(8/π); exp; 1+e; divide; times x), 17 backward (8 for σ; 3 for 2u'; 1-σ; 4 for σ(1 +
// x(1-σ)2u'); times dy). SwiGLU: 5 per element of y (exp; 1+e; divide; times gate; times up), 11 backward (3 for σ; 1-σ; 3
// for σ(1 + gate(1-σ)); times up and dy; two for dup).
//
// Error limit, with δ = 2^-24 and e = e^-2|u| in fp32: 2u carries 5 roundings, so σ a relative error of δ(5|2u|(1-σ) + 5);
// y then stays within 8δ·|y|(1 + |2u|(1-σ)) and dx within 16δ·|dy|(σ + |x|σ(1-σ)2u')(1 + |2u|), each plus what e loses
// as a subnormal, plus the rounding to the output's format. SwiGLU, whose exponential takes its argument unrounded: y
// within 8δ·|y|, dup within 8δ·|dy·gate·σ|, dgate within 16δ·|dy·up|·σ(1 + |gate|(1-σ)), and the same additions.
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

Problem gelu_problem(std::int64_t count, Format x, Format y);
Problem gelu_backward_problem(std::int64_t count, Format dy, Format x, Format dx);

Problem swiglu_problem(std::int64_t rows, std::int64_t width, Format gate_up, Format y);
Problem swiglu_backward_problem(std::int64_t rows, std::int64_t width, Format dy, Format gate_up, Format dgate_up);

const Kernel& activation_kernel();
std::span<const Implementation> activation_cpu();

}  // namespace mixroof
