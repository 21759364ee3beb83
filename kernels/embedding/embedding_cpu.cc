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
  explicit ForwardPlan(const Problem& p)
      : tokens_(p.dim("batch") * p.dim("seq")), seq_(p.dim("seq")), width_(p.dim("width")), formats_(p.formats) {}

  std::string implementation() const override { return path_name(); }

  void run(const Launch& launch) const override {
    parallel_ranges(
        tokens_, 1,
        [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) embed(launch, i);
        },
        kSerialBelow / width_);
  }

 private:
  void embed(const Launch& launch, std::int64_t i) const {
    const auto add = HWY_DYNAMIC_DISPATCH(add_rows);
    const std::int64_t token = static_cast<const std::int32_t*>(launch.operands[0])[i];
    RowBuffer table, positions, sum;
    for_chunks(width_, [&](std::int64_t at, std::int64_t n) {
      const float* a = load_row(formats_[1], launch.operands[1], token * width_ + at, n, table);
      const float* b = load_row(formats_[2], launch.operands[2], i % seq_ * width_ + at, n, positions);
      float* out = row_for_store(formats_[3], launch.operands[3], i * width_ + at, sum);
      add(a, b, out, n);
      store_row(formats_[3], out, n, launch.operands[3], i * width_ + at);
    });
  }

  std::int64_t tokens_, seq_, width_;
  std::vector<Format> formats_;
};

/// Lists of equal tokens: position first[v] holds token v first (-1: never), next[i] is the next position with the
/// token of position i (-1: none).
struct Occurrences {
  std::int32_t* first;
  std::int32_t* next;

  Occurrences(void* workspace, const std::int32_t* tokens, std::int64_t count, std::int64_t vocab)
      : first(static_cast<std::int32_t*>(workspace)), next(first + vocab) {
    std::fill_n(first, vocab, -1);
    for (std::int64_t i = count; i-- > 0;) {
      next[i] = first[tokens[i]];
      first[tokens[i]] = static_cast<std::int32_t>(i);
    }
  }
};

class BackwardPlan final : public Plan {
 public:
  explicit BackwardPlan(const Problem& p)
      : batch_(p.dim("batch")),
        seq_(p.dim("seq")),
        vocab_(p.dim("vocab")),
        context_(p.dim("context")),
        width_(p.dim("width")),
        adds_to_table_(p.dim("tied") != 0 || p.accumulate),
        adds_to_positions_(p.accumulate),
        formats_(p.formats) {}

  std::string implementation() const override { return path_name(); }

  void run(const Launch& launch) const override {
    const std::int64_t tokens = batch_ * seq_;
    const Occurrences where(launch.workspace, static_cast<const std::int32_t*>(launch.operands[1]), tokens, vocab_);
    zero_unused_rows(launch, where);
    parallel_ranges(
        width_, kColumnGrain,
        [&](int, std::int64_t begin, std::int64_t end) {
          sum_table(launch, where, begin, end);
          sum_positions(launch, begin, end);
        },
        kSerialBelow / std::max<std::int64_t>(tokens, 1));
  }

 private:
  /// Rows of written gradients that no token reaches; whole rows, since they may be most of a large table.
  void zero_unused_rows(const Launch& launch, const Occurrences& where) const {
    if (!adds_to_table_)
      parallel_ranges(
          vocab_, 1,
          [&](int, std::int64_t begin, std::int64_t end) {
            for (std::int64_t row = begin; row < end; ++row)
              if (where.first[row] < 0) zero_rows(launch, 2, row, 1);
          },
          kSerialBelow / width_);
    const std::int64_t used = batch_ == 0 ? 0 : seq_;
    if (!adds_to_positions_) zero_rows(launch, 3, used, context_ - used);
  }

  /// Zero is all bits zero in every format.
  void zero_rows(const Launch& launch, std::size_t operand, std::int64_t row, std::int64_t rows) const {
    const Format format = formats_[operand];
    std::memset(element_address(format, launch.operands[operand], row * width_), 0,
                static_cast<std::size_t>(rows * width_ * bytes_of(format)));
  }

  /// Columns [begin, end) of every row that a token names.
  void sum_table(const Launch& launch, const Occurrences& where, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = 0; row < vocab_; ++row)
      if (where.first[row] >= 0)
        sum_rows(launch, 2, row, begin, end, adds_to_table_, where.first[row],
                 [&](std::int64_t i) { return where.next[i]; });
  }

  /// Columns [begin, end) of every position, over the sequences.
  void sum_positions(const Launch& launch, std::int64_t begin, std::int64_t end) const {
    const std::int64_t last_sequence = (batch_ - 1) * seq_;
    for (std::int64_t row = 0; batch_ > 0 && row < seq_; ++row)
      sum_rows(launch, 3, row, begin, end, adds_to_positions_, row,
               [&](std::int64_t i) { return i >= last_sequence ? -1 : i + seq_; });
  }

  /// Sums columns [begin, end) of the rows of dout in the list from `first` on into row `row` of gradient `operand`; -1
  /// ends the list.
  template <typename Next>
  void sum_rows(const Launch& launch, std::size_t operand, std::int64_t row, std::int64_t begin, std::int64_t end,
                bool adds, std::int64_t first, Next next) const {
    const Format format = formats_[operand];
    const auto add = HWY_DYNAMIC_DISPATCH(add_rows);
    RowBuffer sum, term;
    for_chunks(end - begin, [&](std::int64_t at, std::int64_t n) {
      void* gradient = element_address(format, launch.operands[operand], row * width_ + begin + at);
      if (adds)
        decode(format, gradient, sum.values, n);
      else
        std::fill_n(sum.values, n, 0.0f);
      for (std::int64_t i = first; i >= 0; i = next(i))
        add(sum.values, load_row(formats_[0], launch.operands[0], i * width_ + begin + at, n, term), sum.values, n);
      encode(format, sum.values, gradient, n);
    });
  }

  std::int64_t batch_, seq_, vocab_, context_, width_;
  bool adds_to_table_, adds_to_positions_;
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
