// Per-tensor FP8 quantization on the CPU: passes over x in chunks that stay in the L1 cache, the codes by the array
// codec.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/quantize_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/vector-inl.h"
#include "kernels/quantize/scale_elements-inl.h"

#include <fmt/format.h>

#include <mutex>

#include "harness/backend/cpu/parallel.h"
#include "kernels/implementation.h"
#include "kernels/quantize/layout.h"
#include "kernels/quantize/quantize.h"
#include "kernels/row_buffer.h"

HWY_BEFORE_NAMESPACE();
namespace mixroof::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

std::int32_t amax_of_range(Format x_format, const void* x, std::int64_t begin, std::int64_t end) {
  RowBuffer buffer;
  std::int32_t amax = 0;
  for (std::int64_t at = begin; at < end; at += kRowChunk) {
    const std::int64_t count = std::min(kRowChunk, end - at);
    amax = std::max(amax, largest_magnitude(load_row(x_format, x, at, count, buffer), count));
  }
  return amax;
}

/// With an earlier scale the amax comes from the same pass.
Findings quantize_range(Format x_format, const void* x, float scale, ScaleOrigin origin, Format code_format,
                        void* codes, std::int64_t begin, std::int64_t end) {
  const Thresholds thresholds(code_format, origin);
  RowBuffer x_buffer, scaled;
  Findings findings;
  for (std::int64_t at = begin; at < end; at += kRowChunk) {
    const std::int64_t count = std::min(kRowChunk, end - at);
    const float* row = load_row(x_format, x, at, count, x_buffer);
    if (origin == ScaleOrigin::earlier)
      findings.amax_bits = std::max(findings.amax_bits, largest_magnitude(row, count));
    scale_elements(
        row, [scale](auto d, std::int64_t) { return hn::Set(d, scale); }, thresholds, scaled.values, count, findings);
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

HWY_EXPORT(amax_of_range);
HWY_EXPORT(quantize_range);
HWY_EXPORT(target_name);

// Below this many elements a second worker costs more than it saves.
constexpr std::int64_t kSerialBelow = 8 * kRowChunk;

class QuantizePlan : public Plan {
 public:
  explicit QuantizePlan(const Problem& problem)
      : at_(problem),
        count_(problem.dim("count")),
        x_format_(problem.formats[at_.x]),
        code_format_(problem.formats[at_.codes]),
        accumulate_(problem.accumulate) {}

  void run(const Launch& launch) const override { at_.current ? run_current(launch) : run_delayed(launch); }

  std::string implementation() const override { return fmt::format("mixroof {}", HWY_DYNAMIC_DISPATCH(target_name)()); }

 private:
  void run_delayed(const Launch& launch) const {
    const Findings found = quantize(launch, *scale(launch), ScaleOrigin::earlier);
    auto* amax = static_cast<float*>(launch.operands[at_.amax]);
    *amax = amax_value(std::max(found.amax_bits, accumulate_ ? magnitude_bits(*amax) : 0));
    found.report(doubles(launch, at_.counts), nullptr, doubles(launch, at_.control));
  }

  void run_current(const Launch& launch) const {
    std::int32_t amax = 0;
    std::mutex merging;
    parallel_ranges(
        count_, kRowChunk,
        [&](int, std::int64_t begin, std::int64_t end) {
          const std::int32_t found = HWY_DYNAMIC_DISPATCH(amax_of_range)(x_format_, launch.operands[at_.x], begin, end);
          const std::lock_guard lock(merging);
          amax = std::max(amax, found);
        },
        kSerialBelow);
    const ScaleChoice choice = scale_of_amax(amax_value(amax), facts(code_format_).max_finite, *scale(launch));
    *scale(launch) = choice.scale;
    Findings found = quantize(launch, choice.scale, ScaleOrigin::own);
    found.amax_bits = amax;
    found.add(choice);
    found.report(doubles(launch, at_.counts), doubles(launch, at_.scale_counts()), doubles(launch, at_.control));
  }

  Findings quantize(const Launch& launch, float scale, ScaleOrigin origin) const {
    Findings all;
    std::mutex merging;
    parallel_ranges(
        count_, kRowChunk,
        [&](int, std::int64_t begin, std::int64_t end) {
          const Findings found = HWY_DYNAMIC_DISPATCH(quantize_range)(
              x_format_, launch.operands[at_.x], scale, origin, code_format_, launch.operands[at_.codes], begin, end);
          const std::lock_guard lock(merging);
          all.merge(found);
        },
        kSerialBelow);
    return all;
  }

  float* scale(const Launch& launch) const { return static_cast<float*>(launch.operands[at_.scale]); }
  static double* doubles(const Launch& launch, std::size_t operand) {
    return static_cast<double*>(launch.operands[operand]);
  }

  QuantizeLayout at_;
  std::int64_t count_;
  Format x_format_, code_format_;
  bool accumulate_;
};

}  // namespace

std::span<const Implementation> quantize_cpu() {
  static constexpr Implementation kTable[] = {
      {"quantize", "cpu", "mixroof", supports_quantizing, prepare_plan<QuantizePlan>}};
  return kTable;
}

}  // namespace mixroof
#endif  // HWY_ONCE
