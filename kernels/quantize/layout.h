// Where the operands of quantize's two ways are.
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

struct QuantizeLayout {
  explicit QuantizeLayout(const Problem& p)
      : current(p.dim_or("current", 0) != 0), counts(current ? 3 : 4), control(counts + (current ? 2 : 1)) {}
  bool current;
  std::size_t x = 0, scale = 1, codes = 2, amax = 3;  // amax: delayed only
  std::size_t counts, control;
  std::size_t scale_counts() const { return counts + 1; }  // current only
};

}  // namespace mixroof
