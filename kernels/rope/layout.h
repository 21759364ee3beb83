// Where a row of rope's operand holds what, and its angles: shared by the kernel's description and the code that uses it.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/rope/rope.h"

namespace mixroof {

/// Shape of a problem with the columns of its packed rows.
struct RopeLayout : RopeShape {
  explicit RopeLayout(const Problem& p)
      : RopeShape{p.dim("batch"),    p.dim("seq"),     p.dim("heads"), p.dim("kv_heads"),
                  p.dim("head_dim"), p.dim("context"), p.dim("packed") != 0} {}
  std::int64_t rows() const { return batch * seq; }
  /// Heads that are turned: queries, then keys, the first columns of a row.
  std::int64_t turned_heads() const { return heads + kv_heads; }
  std::int64_t turned() const { return turned_heads() * head_dim; }
  std::int64_t stride() const { return (heads + 2 * kv_heads) * head_dim; }
  std::int64_t half() const { return head_dim / 2; }
  /// Number of the operand that is turned; position_ids precede it.
  std::size_t turned_operand() const { return packed ? 1 : 0; }
  /// Positions that rows can have: [0, positions()).
  std::int64_t positions() const { return packed ? context : seq; }
  /// Bytes of a worker's row in fp32; none where the operand is fp32.
  std::int64_t scratch_floats(Format io) const { return io == Format::fp32 ? 0 : (turned() + 15) / 16 * 16; }
};

/// Angle per position by which elements j and j + head_dim/2 are turned, counterclockwise in forward.
inline double rope_rate(std::int64_t j, std::int64_t head_dim, double theta) {
  return std::pow(theta, -2.0 * static_cast<double>(j) / static_cast<double>(head_dim));
}

}  // namespace mixroof
