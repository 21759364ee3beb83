// Embedding on the CPU. Forward: rows shared among workers. Backward: each worker owns a range of columns, so that no
// element has two writers, sums run in the order of positions, and the work of frequent tokens is shared.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/embedding/embedding_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/add_rows-inl.h"

#if HWY_ONCE
#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "harness/backend/cpu/parallel.h"
#include "kernels/embedding/embedding.h"
#include "kernels/embedding/layout.h"
#include "kernels/row_buffer.h"

namespace mixroof {
namespace {

HWY_EXPORT(target_name);
HWY_EXPORT(add_rows);

// Fewer elements than this are done before a second worker has started.
constexpr std::int64_t kSerialBelow = 8192;
// Least columns of a worker in the backward pass: whole cache lines in every format.
constexpr std::int64_t kColumnGrain = 64;

std::string path_name() { return std::string("mixroof ") + HWY_DYNAMIC_DISPATCH(target_name)(); }

class ForwardPlan final : public Plan {
 public:
  explicit ForwardPlan(const Problem& p) : layout_(p), formats_(p.formats) {}

  std::string implementation() const override { return path_name(); }

  void run(const Launch& launch) const override {
    parallel_ranges(
        layout_.tokens, 1,
        [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) embed(launch, i);
        },
        kSerialBelow / layout_.width);
  }

 private:
  void embed(const Launch& launch, std::int64_t i) const {
    const auto add = HWY_DYNAMIC_DISPATCH(add_rows);
    const std::int64_t token = static_cast<const std::int32_t*>(launch.operands[layout_.ids()])[i];
    const Format table = formats_[layout_.table()], out = formats_[layout_.out()];
    RowBuffer a, b, sum;
    for_chunks(layout_.width, [&](std::int64_t at, std::int64_t n) {
      const float* row = load_row(table, launch.operands[layout_.table()], token * layout_.width + at, n, a);
      const std::int64_t to = i * layout_.width + at;
      if (!layout_.has_positions())
        return encode(out, row, element_address(out, launch.operands[layout_.out()], to), n);
      const std::int64_t position = position_of(launch, i) * layout_.width + at;
      float* result = row_for_store(out, launch.operands[layout_.out()], to, sum);
      add(row, load_row(table, launch.operands[layout_.positions()], position, n, b), result, n);
      store_row(out, result, n, launch.operands[layout_.out()], to);
    });
  }

  std::int64_t position_of(const Launch& launch, std::int64_t i) const {
    if (!layout_.packed) return i % layout_.seq;
    return static_cast<const std::int32_t*>(launch.operands[layout_.position_ids()])[i];
  }

  EmbeddingLayout layout_;
  std::vector<Format> formats_;
};

/// Lists of places with equal ids: place first[v] holds id v first (-1: never), next[i] is the next place with the id of
/// place i (-1: none).
struct Occurrences {
  std::int32_t* first;
  std::int32_t* next;

  /// In `storage`, ids + count numbers long.
  Occurrences(std::int32_t* storage, const void* id_of_place, std::int64_t count, std::int64_t ids)
      : first(storage), next(storage + ids) {
    const auto* id = static_cast<const std::int32_t*>(id_of_place);
    std::fill_n(first, ids, -1);
    for (std::int64_t i = count; i-- > 0;) {
      next[i] = first[id[i]];
      first[id[i]] = static_cast<std::int32_t>(i);
    }
  }
};

class BackwardPlan final : public Plan {
 public:
  explicit BackwardPlan(const Problem& p) : layout_(p), formats_(p.formats) {}

  std::string implementation() const override { return path_name(); }

  void run(const Launch& launch) const override {
    auto* storage = static_cast<std::int32_t*>(launch.workspace);
    const Occurrences tokens(storage, launch.operands[layout_.ids()], layout_.tokens, layout_.vocab);
    add_by_id(launch, {layout_.table(), layout_.vocab, layout_.adds_to_table}, tokens);
    if (!layout_.has_positions()) return;
    if (!layout_.packed) return add_by_place(launch);
    const Occurrences positions(storage + layout_.vocab + layout_.tokens, launch.operands[layout_.position_ids()],
                                layout_.tokens, layout_.context);
    add_by_id(launch, {layout_.positions(), layout_.context, layout_.adds_to_positions}, positions);
  }

 private:
  struct Gradient {
    std::size_t operand;
    std::int64_t rows;
    bool adds;
  };

  /// Gradient of a table whose rows the places name by ids.
  void add_by_id(const Launch& launch, const Gradient& gradient, const Occurrences& where) const {
    zero_unused_rows(launch, gradient, where);
    for_columns([&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = 0; row < gradient.rows; ++row)
        if (where.first[row] >= 0)
          sum_rows(launch, gradient, row, begin, end, where.first[row], [&](std::int64_t i) { return where.next[i]; });
    });
  }

  /// Gradient of the position table when a place's position is its place in the row: sums over the sequences.
  void add_by_place(const Launch& launch) const {
    const Gradient gradient{layout_.positions(), layout_.context, layout_.adds_to_positions};
    const std::int64_t used = layout_.batch == 0 ? 0 : layout_.seq, last_sequence = layout_.tokens - layout_.seq;
    if (!gradient.adds) zero_rows(launch, gradient.operand, used, layout_.context - used);
    for_columns([&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = 0; row < used; ++row)
        sum_rows(launch, gradient, row, begin, end, row,
                 [&](std::int64_t i) { return i >= last_sequence ? -1 : i + layout_.seq; });
    });
  }

  /// Calls f(begin, end) for the ranges of columns that workers own.
  template <typename F>
  void for_columns(F f) const {
    parallel_ranges(
        layout_.width, kColumnGrain, [&](int, std::int64_t begin, std::int64_t end) { f(begin, end); },
        kSerialBelow / std::max<std::int64_t>(layout_.tokens, 1));
  }

  /// Rows of written gradients that no id names; whole rows, since they may be most of a large table.
  void zero_unused_rows(const Launch& launch, const Gradient& gradient, const Occurrences& where) const {
    if (gradient.adds) return;
    parallel_ranges(
        gradient.rows, 1,
        [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row)
            if (where.first[row] < 0) zero_rows(launch, gradient.operand, row, 1);
        },
        kSerialBelow / layout_.width);
  }

  /// Zero is all bits zero in every format.
  void zero_rows(const Launch& launch, std::size_t operand, std::int64_t row, std::int64_t rows) const {
    const Format format = formats_[operand];
    std::memset(element_address(format, launch.operands[operand], row * layout_.width), 0,
                static_cast<std::size_t>(rows * layout_.width * bytes_of(format)));
  }

  /// Sums columns [begin, end) of the rows of dout in the list from `first` on into row `row` of a gradient; -1 ends the
  /// list.
  template <typename Next>
  void sum_rows(const Launch& launch, const Gradient& gradient, std::int64_t row, std::int64_t begin, std::int64_t end,
                std::int64_t first, Next next) const {
    const Format format = formats_[gradient.operand], dout = formats_[EmbeddingLayout::dout()];
    const auto add = HWY_DYNAMIC_DISPATCH(add_rows);
    RowBuffer sum, term;
    for_chunks(end - begin, [&](std::int64_t at, std::int64_t n) {
      const std::int64_t column = begin + at;
      void* to = element_address(format, launch.operands[gradient.operand], row * layout_.width + column);
      if (gradient.adds)
        decode(format, to, sum.values, n);
      else
        std::fill_n(sum.values, n, 0.0f);
      for (std::int64_t i = first; i >= 0; i = next(i))
        add(sum.values, load_row(dout, launch.operands[EmbeddingLayout::dout()], i * layout_.width + column, n, term),
            sum.values, n);
      encode(format, sum.values, to, n);
    });
  }

  EmbeddingLayout layout_;
  std::vector<Format> formats_;
};

Support supports(const Problem& p, const DeviceFacts&) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (p.dim("batch") > kMost / p.dim("seq"))
    return Support::no("embedding lists positions as int32: batch * seq must stay below 2^31 (use a smaller batch)");
  return {};
}

std::unique_ptr<Plan> prepare(const Problem& problem, const PrepareContext&) {
  if (problem.variant == "forward") return std::make_unique<ForwardPlan>(problem);
  return std::make_unique<BackwardPlan>(problem);
}

constexpr Implementation kImplementations[] = {{"embedding", "cpu", "mixroof", supports, prepare}};

}  // namespace

std::span<const Implementation> embedding_cpu() { return kImplementations; }

}  // namespace mixroof
#endif
