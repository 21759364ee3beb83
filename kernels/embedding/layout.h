// Where the operands of an embedding problem are: shared by the kernel's description and the code that uses it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "harness/numeric/checked.h"
#include "kernels/kernel.h"

namespace mixroof {

struct EmbeddingLayout {
  explicit EmbeddingLayout(const Problem& p)
      : batch(p.dim("batch")),
        seq(p.dim("seq")),
        vocab(p.dim("vocab")),
        context(p.dim("context")),
        width(p.dim("width")),
        tokens(checked_product({batch, seq})),
        packed(p.dim_or("packed", 0) != 0),
        is_forward(p.variant == "forward"),
        adds_to_table(!is_forward && (p.dim("tied") != 0 || p.accumulate)),
        adds_to_positions(p.accumulate) {}

  bool has_positions() const { return context > 0; }

  /// Rows of the table that `tokens` ids can name, and rows of the position table that are used.
  std::int64_t most_table_rows() const { return std::min(tokens, vocab); }
  std::int64_t most_position_rows() const { return tokens == 0 ? 0 : std::min(packed ? tokens : seq, context); }

  /// Operand numbers. The position ids exist when packed, the position table (or its gradient) with has_positions().
  std::size_t ids() const { return is_forward ? 0 : 1; }
  std::size_t position_ids() const { return ids() + 1; }
  std::size_t table() const { return ids() + (packed ? 2 : 1); }
  std::size_t positions() const { return table() + 1; }
  std::size_t out() const { return table() + (has_positions() ? 2 : 1); }
  static constexpr std::size_t dout() { return 0; }

  std::int64_t batch, seq, vocab, context, width, tokens;
  bool packed, is_forward, adds_to_table, adds_to_positions;
};

}  // namespace mixroof
