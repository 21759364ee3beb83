// FP8 quantization by blocks on the CPU. Blocks in rows: amax, scale and codes of one block after another, which stays
// in the L1 cache. Blocks in columns: stripes of a few hundred columns, whose maxima and scales are rows of fp32.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize_blocks/quantize_blocks_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/vector-inl.h"
#include "kernels/quantize/scale_elements-inl.h"

#include <fmt/format.h>

#include <mutex>

#include "harness/backend/cpu/parallel.h"
#include "kernels/implementation.h"
#include "kernels/quantize_blocks/layout.h"
#include "kernels/row_buffer.h"

#ifndef MIXROOF_QUANTIZE_BLOCKS_CPU_ONCE
#define MIXROOF_QUANTIZE_BLOCKS_CPU_ONCE
namespace mixroof {
namespace {

/// Columns of a stripe: their maxima and scales fit the L1 cache, and a few workers find some each.
constexpr std::int64_t kStripe = 256;

/// The tensors of one run.
struct Tensors {
  const void* x;
  void* codes;
  void* scale_inv;
};

}  // namespace
}  // namespace mixroof
#endif

HWY_BEFORE_NAMESPACE();
namespace mixroof::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

/// One block that lies in a row, from element `first` of the tensor on.
void quantize_in_row(const BlockLayout& s, const Tensors& t, std::int64_t first, std::int64_t count,
                     std::int64_t scale_at, Findings& findings) {
  const Thresholds thresholds(s.code_format, ScaleOrigin::own);
  RowBuffer x_buffer, scaled;
  std::int32_t amax = 0;
  for_chunks(count, [&](std::int64_t at, std::int64_t n) {
    amax = std::max(amax, largest_magnitude(load_row(s.x_format, t.x, first + at, n, x_buffer), n));
  });
  const ScaleChoice choice = s.choose(amax_value(amax));
  encode(s.scale_format, &choice.scale_inv, element_address(s.scale_format, t.scale_inv, scale_at), 1);
  findings.add(choice);
  findings.amax_bits = std::max(findings.amax_bits, amax);
  for_chunks(count, [&](std::int64_t at, std::int64_t n) {
    const float* row = load_row(s.x_format, t.x, first + at, n, x_buffer);
    scale_elements(
        row, [&](auto d, std::int64_t) { return hn::Set(d, choice.scale); }, thresholds, scaled.values, n, findings);
    store_row(s.code_format, scaled.values, n, t.codes, first + at);
  });
}

Findings quantize_rows(const BlockLayout& s, const Tensors& t, std::int64_t begin, std::int64_t end) {
  Findings findings;
  for (std::int64_t row = begin; row < end; ++row)
    for (std::int64_t b = 0; b < s.blocks(); ++b)
      quantize_in_row(s, t, row * s.width + b * s.block, std::min(s.block, s.width - b * s.block), row * s.blocks() + b,
                      findings);
  return findings;
}

/// Block `b` of the columns from `column` on.
void quantize_stripe(const BlockLayout& s, const Tensors& t, std::int64_t b, std::int64_t column, Findings& findings) {
  const Thresholds thresholds(s.code_format, ScaleOrigin::own);
  const std::int64_t count = std::min(kStripe, s.width - column);
  const std::int64_t begin = b * s.block, end = std::min(begin + s.block, s.rows);
  alignas(64) float x_buffer[kStripe], scaled[kStripe], scales[kStripe], inverses[kStripe];
  alignas(64) float amax[kStripe] = {};  // bits of magnitudes
  for (std::int64_t row = begin; row < end; ++row) {
    const float* x = load_row(s.x_format, t.x, row * s.width + column, count, x_buffer);
    for_each_vector(count, [&](auto d, std::int64_t i) {
      const hn::RebindToSigned<decltype(d)> d_int;
      const auto so_far = hn::BitCast(d_int, hn::LoadU(d, amax + i));
      hn::StoreU(hn::BitCast(d, hn::Max(so_far, magnitude_bits(d, x + i))), d, amax + i);
    });
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t bits = mixroof::magnitude_bits(amax[i]);
    const ScaleChoice choice = s.choose(amax_value(bits));
    scales[i] = choice.scale;
    inverses[i] = choice.scale_inv;
    findings.add(choice);
    findings.amax_bits = std::max(findings.amax_bits, bits);
  }
  encode(s.scale_format, inverses, element_address(s.scale_format, t.scale_inv, b * s.width + column), count);
  for (std::int64_t row = begin; row < end; ++row) {
    const float* x = load_row(s.x_format, t.x, row * s.width + column, count, x_buffer);
    scale_elements(
        x, [&](auto d, std::int64_t i) { return hn::LoadU(d, scales + i); }, thresholds, scaled, count, findings);
    store_row(s.code_format, scaled, count, t.codes, row * s.width + column);
  }
}

/// Stripes number `begin` to `end`, counted block by block.
Findings quantize_stripes(const BlockLayout& s, const Tensors& t, std::int64_t begin, std::int64_t end) {
  const std::int64_t stripes = (s.width + kStripe - 1) / kStripe;
  Findings findings;
  for (std::int64_t i = begin; i < end; ++i) quantize_stripe(s, t, i / stripes, i % stripes * kStripe, findings);
  return findings;
}

}  // namespace
}  // namespace mixroof::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mixroof {
namespace {

HWY_EXPORT(quantize_rows);
HWY_EXPORT(quantize_stripes);
HWY_EXPORT(target_name);

// Below this many elements a second worker costs more than it saves.
constexpr std::int64_t kSerialBelow = 8 * kRowChunk;

class QuantizeBlocksPlan : public Plan {
 public:
  explicit QuantizeBlocksPlan(const Problem& problem) : shape_(problem) {}

  void run(const Launch& launch) const override {
    const Tensors tensors{launch.operands[BlockLayout::x], launch.operands[BlockLayout::codes],
                          launch.operands[BlockLayout::scale_inv]};
    const std::int64_t tasks =
        shape_.along_rows ? shape_.rows : shape_.blocks() * ((shape_.width + kStripe - 1) / kStripe);
    Findings all;
    std::mutex merging;
    parallel_ranges(
        tasks, 1,
        [&](int, std::int64_t begin, std::int64_t end) {
          const Findings found = shape_.along_rows
                                     ? HWY_DYNAMIC_DISPATCH(quantize_rows)(shape_, tensors, begin, end)
                                     : HWY_DYNAMIC_DISPATCH(quantize_stripes)(shape_, tensors, begin, end);
          const std::lock_guard lock(merging);
          all.merge(found);
        },
        shape_.rows * shape_.width < kSerialBelow ? tasks : 0);
    all.report(doubles(launch, BlockLayout::counts), doubles(launch, BlockLayout::scale_counts),
               doubles(launch, BlockLayout::control));
  }

  std::string implementation() const override { return fmt::format("mixroof {}", HWY_DYNAMIC_DISPATCH(target_name)()); }

 private:
  static double* doubles(const Launch& launch, std::size_t operand) {
    return static_cast<double*>(launch.operands[operand]);
  }

  BlockLayout shape_;
};

}  // namespace

std::span<const Implementation> quantize_blocks_cpu() {
  static constexpr Implementation kTable[] = {
      {"quantize_blocks", "cpu", "mixroof", supports_quantizing, prepare_plan<QuantizeBlocksPlan>}};
  return kTable;
}

}  // namespace mixroof
#endif  // HWY_ONCE
