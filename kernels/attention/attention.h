// Causal self-attention over packed projections; memory linear in the sequence (arXiv 2205.14135, 2307.08691).
//
//   qkv   [batch*seq, (heads + 2*kv_heads)*head_dim]: queries, then keys, then values; head h is columns h*head_dim …
//   out   [batch*seq, heads*head_dim]
//   lse   [batch, heads, seq] fp32: log-sum-exp of the scaled scores, scale 1/√head_dim
//   first_key [batch*seq] int32, packed only: the place in its row where the document of this position begins
//   forward  operands: qkv, [first_key], out, lse
//   backward operands: qkv, [first_key], out, dout, lse, dqkv
// A query reads the keys from the first of its row, when packed from first_key, to its own. Within a row
// 0 <= first_key[t] <= t, never falling: the caller checks that. Keys before a document cost no time, tile by tile.
// A value that is not finite also reaches queries of the same tile that do not see it (their weight 0 times NaN is NaN).
// Query head j reads key/value head j / (heads / kv_heads). Products take their inputs in the format of qkv and accumulate
// in fp32; softmax in fp32. FLOPs: the causal half, 4·batch·heads·head_dim·T(T+1)/2 forward and 2.5 times that backward (the
// scores are recomputed: 5 products against 2), booked under the format of qkv; packed with `pairs`: `pairs` in the place of
// batch·T(T+1)/2.
//
// With S = q·kᵀ/√head_dim: P = exp(S - lse), out = P·v. Backward takes out and lse as given:
//   delta = Σ out·dout per query, dS = P∘(dout·vᵀ - delta), dq = dS·k/√head_dim, dk = dSᵀ·q/√head_dim, dv = Pᵀ·dout.
//
// Error limit. δ = 2^-24; γ = (8 + √n)·δ for sums of at most n terms, n the larger of head_dim and the number of queries
// that meet in a key's gradient (random-walk growth, Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019); υ the unit
// roundoff of a 16-bit `io`, to which P and dS are rounded as inputs of a product, 0 for fp32; φ half its least subnormal.
// A_ij = Σ|q·k|/√head_dim bounds what a score lost, so P_ij errs by γ·w_ij·P_ij, w_ij = 1 + A_ij + |lse_i| + Σ_j P_ij·A_ij
// (the last term from the normaliser; forward only). With B_ij = Σ|dout·v|, C_i = Σ|out·dout|:
//   out   Σ_j |v|·(P_ij(υ + γ·w_ij) + φ);   lse  γ·w without A_ij
//   dv    Σ_i |dout|·(P_ij(υ + γ·w_ij) + φ)
//   dq, dk  Σ |k or q|·(υ|dS_ij| + γ·w_ij·P_ij(B_ij + C_i) + φ)/√head_dim
// each plus the rounding to the output's format.
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

/// `packed`: several documents a row, attention never across.
struct AttentionShape {
  std::int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  bool packed = false;
  /// Packed: query-key pairs of a micro-batch, for the FLOPs (documents are data; a program counts their mean). 0: all
  /// that the causal half holds.
  std::int64_t pairs = 0;
};

/// Every [batch*seq, …] operand has format `io`. Throws UsageError naming the dimension when the shape is impossible.
Problem attention_forward_problem(const AttentionShape& shape, Format io);
Problem attention_backward_problem(const AttentionShape& shape, Format io);

const Kernel& attention_kernel();
std::span<const Implementation> attention_cpu();

}  // namespace mixroof
