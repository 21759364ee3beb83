// Shape and operand positions of a matmul problem, for its implementations.
#pragma once

#include "kernels/matmul/matmul.h"

namespace mixroof {

/// Where the operands of a matmul problem are, by index; `bias` is -1 without one.
struct MatmulLayout {
  MatmulVariant variant = MatmulVariant::forward;
  std::int64_t m = 0, n = 0, k = 0;
  int bias = -1;
  std::size_t scale_a = 0, scale_b = 0, c = 0;  // scales are 0 when a is not FP8
  std::int64_t block = 0;                       // of block scales; 0: none or per tensor
  bool has_scales() const { return scale_a != 0; }
  std::int64_t blocks() const { return (k + block - 1) / block; }  // with block scales only
};
/// Throws UsageError for an unknown variant.
MatmulLayout matmul_layout(const Problem& problem);

}  // namespace mixroof
