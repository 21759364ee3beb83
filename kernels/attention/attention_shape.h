// Where heads lie in attention's operands, and the fp32 panels that the CPU kernels keep per worker: shared by the
// workspace count and the code that uses it.
#pragma once

#include <cstdint>

#include "kernels/attention/attention.h"

namespace mixroof {

/// Shape of a problem with the columns of its packed rows.
struct AttentionLayout : AttentionShape {
  explicit AttentionLayout(const Problem &p)
      : AttentionShape{p.dim("batch"),    p.dim("seq"),
                       p.dim("heads"),    p.dim("kv_heads"),
                       p.dim("head_dim"), p.dim_or("packed", 0) != 0,
                       p.dim_or("pairs", 0)} {}
  std::int64_t group() const { return heads / kv_heads; }
  std::int64_t qkv_stride() const { return (heads + 2 * kv_heads) * head_dim; }
  std::int64_t out_stride() const { return heads * head_dim; }
  /// Elements from the start of qkv (or dqkv) to position 0 of a head.
  std::int64_t query(std::int64_t b, std::int64_t head) const { return b * seq * qkv_stride() + head * head_dim; }
  std::int64_t key(std::int64_t b, std::int64_t kv_head) const { return query(b, heads + kv_head); }
  std::int64_t value(std::int64_t b, std::int64_t kv_head) const { return query(b, heads + kv_heads + kv_head); }
  std::int64_t out(std::int64_t b, std::int64_t head) const { return b * seq * out_stride() + head * head_dim; }
  std::int64_t lse(std::int64_t b, std::int64_t head) const { return (b * heads + head) * seq; }
};

/// Operand numbers; first_key exists when packed, dout and dqkv in backward.
struct AttentionOperands {
  explicit AttentionOperands(const Problem &p) : AttentionOperands(p.dim_or("packed", 0) != 0, p.variant == "backward") {}
  std::size_t qkv = 0, first_key = 1, out, dout, lse, dqkv;

 private:
  AttentionOperands(bool packed, bool backward)
      : out(packed ? 2 : 1), dout(out + 1), lse(out + (backward ? 2 : 1)), dqkv(out + 3) {}
};

/// Queries and keys of one tile of scores: a tile, and the rows it meets, stay in the first two cache levels.
inline constexpr std::int64_t kAttentionTile = 64;

/// Floats of a worker's panels. Panels are [seq padded, head_dim padded] or transposed, so that every row of a
/// product's right-hand side is whole vectors of any width up to 16 lanes.
struct AttentionPanels {
  static std::int64_t padded(std::int64_t n) { return (n + 15) / 16 * 16; }
  std::int64_t seq, width;  // padded
  explicit AttentionPanels(const AttentionShape &s) : seq(padded(s.seq)), width(padded(s.head_dim)) {}
  std::int64_t whole() const { return seq * width; }            // all positions of a head
  std::int64_t rows() const { return kAttentionTile * width; }  // positions of a tile
  static constexpr std::int64_t tile() { return kAttentionTile * kAttentionTile; }
  /// Forward: kᵀ, v; queries, outputs; scores; running maximum and sum.
  std::int64_t forward_floats() const { return 2 * whole() + 2 * rows() + tile() + 2 * kAttentionTile; }
  /// Backward: k, kᵀ, vᵀ, dk, dv, q, dout, dq; delta; P and dS; rows being transposed.
  std::int64_t backward_floats() const { return 8 * whole() + seq + 2 * tile() + rows(); }
};

/// A tile of queries against the keys that they see, for the forward code of one Highway target. Panels as in
/// AttentionPanels. `first_keys` is that of the row's positions; null when not packed.
struct AttentionForwardTile {
  const float *keys_t, *values, *queries;   // [width, seq], [seq, width], [tile, width]
  float *outputs, *scores, *maxima, *sums;  // [tile, width], [tile, tile], [tile], [tile]
  const std::int32_t *first_keys;           // [seq]
  std::int64_t first, count;                // queries
};

/// One tile of queries against one tile of keys, backward. `first_keys` as in AttentionForwardTile.
struct AttentionBackwardPanels {
  const std::int32_t *first_keys;                     // [seq]
  float *keys, *keys_t, *values_t, *dkeys, *dvalues;  // of the key/value head
  float *queries, *douts, *dqueries, *deltas;         // of the query head
  float *p, *ds, *rows;                               // scratch
};

}  // namespace mixroof
