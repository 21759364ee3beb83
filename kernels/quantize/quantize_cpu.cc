// Per-tensor FP8 quantization on the CPU: one pass over x in chunks that stay in the L1 cache, the codes by the array
// codec. Maximum and counts are whole numbers of bits and elements, so any order of the workers gives the same.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/quantize_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/vector-inl.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <mutex>

#include "harness/backend/cpu/parallel.h"
#include "harness/numeric/codec.h"
#include "kernels/control.h"
#include "kernels/implementation.h"
#include "kernels/quantize/quantize.h"
#include "kernels/row_buffer.h"

#ifndef MIXROOF_QUANTIZE_CPU_ONCE
#define MIXROOF_QUANTIZE_CPU_ONCE
namespace mixroof {
namespace {

/// What a pass finds besides the codes. Bit patterns of magnitudes order finite < infinity < NaN, which is just the
/// order in which amax must report them.
struct Findings {
  std::int32_t amax_bits = 0;
  std::int64_t saturated = 0, flushed = 0;

  void merge(const Findings& other) {
    amax_bits = std::max(amax_bits, other.amax_bits);
    saturated += other.saturated;
    flushed += other.flushed;
  }
};

struct Thresholds {
  float scale;
  float max_finite;      // above it a scaled value saturates
  float rounds_to_zero;  // up to it a scaled value becomes zero: half the smallest subnormal ties to even
};

}  // namespace
}  // namespace mixroof
#endif

HWY_BEFORE_NAMESPACE();
namespace mixroof::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

/// Scales whole vectors of x[begin, count) into y; returns where it stopped.
template <class D>
HWY_INLINE std::int64_t scale_elements(D d, const float* HWY_RESTRICT x, const Thresholds& t, float* HWY_RESTRICT y,
                                       std::int64_t begin, std::int64_t count, Findings& findings) {
  const hn::RebindToSigned<D> d_int;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto scale = hn::Set(d, t.scale), max_finite = hn::Set(d, t.max_finite),
             zero_up_to = hn::Set(d, t.rounds_to_zero);
  const auto magnitude_mask = hn::Set(d_int, 0x7FFFFFFF);
  auto amax = hn::Zero(d_int), saturated = hn::Zero(d_int), flushed = hn::Zero(d_int);
  std::int64_t i = begin;
  for (; i + lanes <= count; i += lanes) {
    const auto value = hn::LoadU(d, x + i);
    const auto scaled = hn::Mul(value, scale);
    const auto magnitude = hn::Abs(scaled);
    hn::StoreU(scaled, d, y + i);
    amax = hn::Max(amax, hn::And(hn::BitCast(d_int, value), magnitude_mask));
    // A true lane is -1.
    const auto is_saturated = hn::VecFromMask(d, hn::Gt(magnitude, max_finite));
    const auto is_flushed = hn::VecFromMask(d, hn::And(hn::Le(magnitude, zero_up_to), hn::Ne(value, hn::Zero(d))));
    saturated = hn::Sub(saturated, hn::BitCast(d_int, is_saturated));
    flushed = hn::Sub(flushed, hn::BitCast(d_int, is_flushed));
  }
  findings.merge({.amax_bits = hn::GetLane(hn::MaxOfLanes(d_int, amax)),
                  .saturated = hn::GetLane(hn::SumOfLanes(d_int, saturated)),
                  .flushed = hn::GetLane(hn::SumOfLanes(d_int, flushed))});
  return i;
}

Findings quantize_range(Format x_format, const void* x, const Thresholds& thresholds, Format code_format, void* codes,
                        std::int64_t begin, std::int64_t end) {
  RowBuffer x_buffer, scaled;
  Findings findings;
  for (std::int64_t at = begin; at < end; at += kRowChunk) {
    const std::int64_t count = std::min(kRowChunk, end - at);
    const float* row = load_row(x_format, x, at, count, x_buffer);
    const std::int64_t tail =
        scale_elements(hn::ScalableTag<float>(), row, thresholds, scaled.values, 0, count, findings);
    scale_elements(hn::CappedTag<float, 1>(), row, thresholds, scaled.values, tail, count, findings);
    store_row(code_format, scaled.values, count, codes, at);
  }
  return findings;
}

}  // namespace
}  // namespace mixroof::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mixroof {
namespace {

HWY_EXPORT(quantize_range);
HWY_EXPORT(target_name);

// Below this many elements a second worker costs more than it saves.
constexpr std::int64_t kSerialBelow = 8 * kRowChunk;

constexpr std::int32_t kInfinityBits = 0x7F800000;

float amax_value(std::int32_t bits) {
  return bits > kInfinityBits ? std::bit_cast<float>(std::int32_t{0x7FC00000}) : std::bit_cast<float>(bits);
}

std::int32_t magnitude_bits(float value) { return std::bit_cast<std::int32_t>(value) & 0x7FFFFFFF; }

class QuantizePlan : public Plan {
 public:
  explicit QuantizePlan(const Problem& problem)
      : count_(problem.dim("count")),
        x_format_(problem.formats[0]),
        code_format_(problem.formats[2]),
        accumulate_(problem.accumulate) {}

  void run(const Launch& launch) const override {
    const FormatFacts& codes = facts(code_format_);
    const Thresholds thresholds{.scale = *static_cast<const float*>(launch.operands[1]),
                                .max_finite = static_cast<float>(codes.max_finite),
                                .rounds_to_zero = static_cast<float>(codes.min_subnormal / 2)};
    Findings all;
    std::mutex merging;
    parallel_ranges(
        count_, kRowChunk,
        [&](int, std::int64_t begin, std::int64_t end) {
          const Findings found = HWY_DYNAMIC_DISPATCH(quantize_range)(x_format_, launch.operands[0], thresholds,
                                                                      code_format_, launch.operands[2], begin, end);
          const std::lock_guard lock(merging);
          all.merge(found);
        },
        kSerialBelow);
    report(all, static_cast<float*>(launch.operands[3]), static_cast<double*>(launch.operands[4]),
           static_cast<double*>(launch.operands[5]));
  }

  std::string implementation() const override { return fmt::format("mixroof {}", HWY_DYNAMIC_DISPATCH(target_name)()); }

 private:
  void report(const Findings& found, float* amax, double* counts, double* control) const {
    *amax = amax_value(std::max(found.amax_bits, accumulate_ ? magnitude_bits(*amax) : 0));
    counts[0] += static_cast<double>(found.saturated);
    counts[1] += static_cast<double>(found.flushed);
    if (found.amax_bits >= kInfinityBits) slot(control, Slot::found_inf) = 1;
  }

  std::int64_t count_;
  Format x_format_, code_format_;
  bool accumulate_;
};

Support supports(const Problem& problem, const DeviceFacts&) {
  const Format x = problem.formats[0];
  if (x == Format::fp32 || is_16_bit(x)) return {};
  return Support::no(fmt::format("cannot quantize from {}; use fp32, fp16 or bf16", name(x)));
}

}  // namespace

std::span<const Implementation> quantize_cpu() {
  static constexpr Implementation kTable[] = {{"quantize", "cpu", "mixroof", supports, prepare_plan<QuantizePlan>}};
  return kTable;
}

}  // namespace mixroof
#endif  // HWY_ONCE
