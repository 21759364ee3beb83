// Rotary position embedding (arXiv 2104.09864), half-split pairs, in place on packed projections.
//
//   forward  operands: [position_ids int32[batch*seq] when packed], qkv[batch*seq, (heads + 2*kv_heads)*head_dim]
//   backward operands: [position_ids], dqkv
// qkv and dqkv are read_write: the columns of queries and keys are turned, those of values stay as they are.
// Element j of a head pairs with j + head_dim/2; both are turned by position · theta^(-2j/head_dim), forward
// counterclockwise, backward (on dqkv) by the opposite angle. Computed in fp32 from sines and cosines that were rounded once
// from double; rounded once to the format of qkv. Without position_ids a row's places are its positions. Every position id
// must lie in [0, context): the caller checks ids before training.
//
// FLOPs (fp32): 3 per element of queries and keys (two multiplies and an addition). Bytes: queries and keys read and
// written, position_ids read; values are not touched. The sines and cosines of a problem's positions belong to its plan.
//
// Error limit, δ = 2^-24: sine, cosine, both products and their sum are rounded, so 4δ·(|x·cos| + |x'·sin|), x' being the
// other of the pair, plus the rounding to the format of qkv.
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

struct RopeShape {
  std::int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t context = 0;  // positions lie in [0, context)
  bool packed = false;
};

/// Throws UsageError naming the dimension when the shape is impossible: head_dim is odd, or, not packed, seq exceeds
/// context.
Problem rope_forward_problem(const RopeShape& shape, Format io, double theta);
Problem rope_backward_problem(const RopeShape& shape, Format io, double theta);

const Kernel& rope_kernel();
std::span<const Implementation> rope_cpu();

}  // namespace mixroof
