// AdamW with decoupled decay (arXiv 1711.05101) on one tensor, in place:
//   g = grad · control[grad_factor];  p ← p·(1 − lr·decay);  m ← β1·m + (1−β1)·g;  v ← β2·v + (1−β2)·g²
//   p ← p − lr·(m/bias_correction1) / (√(v/bias_correction2) + eps)
// all in fp32, lr and the corrections from the control tensor. control[apply] = 0 leaves every byte as it is.
//
// Operands with master=1: grad[count], param[count] (write: the rounded new master), master fp32[count], moment1, moment2,
// control. With master=0 master is absent and param is read_write. An applied update that leaves a parameter or moment that
// is not finite sets control[state_nonfinite] to 1. Constants: beta1, beta2, eps, weight_decay.
// A skipped update does not write param even with master=1.
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

struct AdamwConstants {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
};

Problem adamw_problem(std::int64_t count, Format grad, Format param, bool master, Format moments,
                      const AdamwConstants& constants);

const Kernel& adamw_kernel();
std::span<const Implementation> adamw_cpu();

}  // namespace mixroof
