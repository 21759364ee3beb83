// Operands of quantize_blocks and where the scale of a block lies.
#pragma once

#include "kernels/quantize/scale_rules.h"
#include "kernels/quantize_blocks/quantize_blocks.h"

namespace mixroof {

struct BlockLayout : BlockShape {
  explicit BlockLayout(const Problem& p)
      : BlockShape{p.dim("rows"), p.dim("width"), p.dim("block"), p.dim("along_rows") != 0},
        x_format(p.formats[x]),
        code_format(p.formats[codes]),
        scale_format(p.formats[scale_inv]) {}

  std::int64_t blocks() const { return ((along_rows ? width : rows) + block - 1) / block; }
  std::int64_t scales() const { return blocks() * (along_rows ? rows : width); }

  ScaleChoice choose(float amax) const {
    const double max_finite = facts(code_format).max_finite;
    return scale_format == Format::e8m0 ? mx_scale_of_amax(amax, max_finite) : scale_of_amax(amax, max_finite);
  }

  static constexpr std::size_t x = 0, codes = 1, scale_inv = 2, counts = 3, scale_counts = 4, control = 5;
  Format x_format, code_format, scale_format;
};

}  // namespace mixroof
