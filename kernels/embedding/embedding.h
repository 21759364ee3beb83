// Token and position embedding.
//
//   forward  operands: tokens int32[batch*seq], [position_ids int32[batch*seq] when packed], table[vocab,width],
//            positions[context,width], out[batch*seq,width]
//            out row (b,t) = table[token] + positions[t], summed in fp32, rounded once; packed: positions[position id]
//   backward operands: dout[batch*seq,width], tokens, [position_ids], dtable[vocab,width], dpositions[context,width]
// With context=0 there is no position table: positions, dpositions and position_ids are absent.
// dtable: flag tied=1 adds to what dtable holds (the tied head has written its gradient there, or earlier micro-batches
// have); tied=0 with accumulate=false writes every row (rows of absent tokens become 0). dpositions is written (rows of
// absent positions become 0), with accumulate=true added to. Rows that share a token, or a position, are summed in fp32
// and rounded once. Every token must lie in [0, vocab) and every position id in [0, context): the caller checks ids before
// training.
//
// FLOPs (fp32): forward one addition per element of out; backward two per element of dout, one into each gradient (a
// sum of n terms counts n); without a position table one less of both. Bytes, exact from the shape alone: N = batch·seq ids name at most min(N, vocab) rows of the
// table, so forward reads that many rows, and a gradient that is added to is read and written in that many; a gradient
// that is written is written in every row. Of the position tables seq rows are read (or read and written when added
// to), when packed min(N, context).
//
// Backward on the CPU is deterministic for any number of workers: each element is summed by one worker in the order of
// rows, along lists of equal tokens (and of equal position ids) in the workspace.
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

/// context 0: no position table (the operands `positions` and `dpositions` are absent). `packed`: an operand position_ids
/// int32[batch*seq] follows tokens and says which row of the position table each place takes (else its place in the row);
/// without a position table it is absent, too, and `packed` changes nothing.
struct EmbeddingShape {
  std::int64_t batch = 0, seq = 0, vocab = 0, context = 0, width = 0;
  bool packed = false;
};

Problem embedding_forward_problem(const EmbeddingShape& shape, Format params, Format out);
Problem embedding_backward_problem(const EmbeddingShape& shape, Format dout, Format grads, bool tied, bool accumulate);

const Kernel& embedding_kernel();
std::span<const Implementation> embedding_cpu();

}  // namespace mixroof
