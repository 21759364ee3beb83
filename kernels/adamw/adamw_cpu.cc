// AdamW on the CPU: one pass over all bytes, in chunks of fp32 that stay in the L1 cache; tensors that are fp32 are
// updated where they are. Elements are independent, so the result does not depend on the number of workers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adamw/adamw_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/vector-inl.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include "harness/backend/cpu/parallel.h"
#include "kernels/adamw/adamw.h"
#include "kernels/adamw/layout.h"
#include "kernels/control.h"
#include "kernels/implementation.h"
#include "kernels/row_buffer.h"

#ifndef MIXROOF_ADAMW_CPU_ONCE
#define MIXROOF_ADAMW_CPU_ONCE
namespace mixroof {
namespace {

/// The update's numbers in fp32, each rounded once from double.
struct AdamwScalars {
  // grad_factor as a product: a factor below the normal range would lose its bits (clipping gradients near the largest
  // fp32 value), so it is applied in two steps then.
  float grad_shift, grad_factor;
  float decay;  // 1 - rate · weight_decay
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float step;  // rate / bias_correction1
  float inverse_correction2;
  float eps;
};

/// A chunk of each tensor as fp32, updated in place.
struct AdamwRows {
  const float* grad;
  float *value, *moment1, *moment2;
};

/// Largest bit patterns of |value| and |moment|: they order like the magnitudes, infinity and NaN on top.
struct LargestBits {
  std::int32_t value = 0, moment = 0;
};

}  // namespace
}  // namespace mixroof
#endif

HWY_BEFORE_NAMESPACE();
namespace mixroof::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

/// Updates whole vectors of [begin, count); returns where it stopped.
template <class D>
HWY_INLINE std::int64_t update_elements(D d, const AdamwScalars& s, const AdamwRows& rows, std::int64_t begin,
                                        std::int64_t count, LargestBits& largest) {
  const hn::RebindToSigned<D> d_int;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto shift = hn::Set(d, s.grad_shift), factor = hn::Set(d, s.grad_factor), decay = hn::Set(d, s.decay);
  const auto beta1 = hn::Set(d, s.beta1), rest1 = hn::Set(d, s.one_minus_beta1);
  const auto beta2 = hn::Set(d, s.beta2), rest2 = hn::Set(d, s.one_minus_beta2);
  const auto step = hn::Set(d, s.step), correction2 = hn::Set(d, s.inverse_correction2), eps = hn::Set(d, s.eps);
  const auto magnitude_mask = hn::Set(d_int, 0x7FFFFFFF);
  const auto magnitude_bits = [&](auto x) HWY_ATTR { return hn::And(hn::BitCast(d_int, x), magnitude_mask); };
  auto largest_value = hn::Zero(d_int), largest_moment = hn::Zero(d_int);
  std::int64_t i = begin;
  for (; i + lanes <= count; i += lanes) {
    const auto grad = hn::Mul(hn::Mul(hn::LoadU(d, rows.grad + i), shift), factor);
    const auto m = hn::MulAdd(beta1, hn::LoadU(d, rows.moment1 + i), hn::Mul(rest1, grad));
    const auto v = hn::MulAdd(beta2, hn::LoadU(d, rows.moment2 + i), hn::Mul(rest2, hn::Mul(grad, grad)));
    const auto denominator = hn::Add(hn::Sqrt(hn::Mul(v, correction2)), eps);
    const auto decayed = hn::Mul(hn::LoadU(d, rows.value + i), decay);
    const auto value = hn::NegMulAdd(step, hn::Div(m, denominator), decayed);
    hn::StoreU(m, d, rows.moment1 + i);
    hn::StoreU(v, d, rows.moment2 + i);
    hn::StoreU(value, d, rows.value + i);
    largest_value = hn::Max(largest_value, magnitude_bits(value));
    largest_moment = hn::Max(largest_moment, hn::Max(magnitude_bits(m), magnitude_bits(v)));
  }
  largest.value = std::max(largest.value, hn::GetLane(hn::MaxOfLanes(d_int, largest_value)));
  largest.moment = std::max(largest.moment, hn::GetLane(hn::MaxOfLanes(d_int, largest_moment)));
  return i;
}

void update_rows(const AdamwScalars& scalars, const AdamwRows& rows, std::int64_t count, LargestBits& largest) {
  const std::int64_t tail = update_elements(hn::ScalableTag<float>(), scalars, rows, 0, count, largest);
  update_elements(hn::CappedTag<float, 1>(), scalars, rows, tail, count, largest);
}

}  // namespace
}  // namespace mixroof::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mixroof {
namespace {

HWY_EXPORT(update_rows);
HWY_EXPORT(target_name);

// Below this many elements a second worker costs more than it saves.
constexpr std::int64_t kSerialBelow = 4 * kRowChunk;

/// Bits of the least fp32 magnitude that `format` no longer rounds to a finite value: half a spacing above its largest,
/// where the tie goes to the even neighbour, infinity.
std::int32_t least_overflowing_bits(Format format) {
  const FormatFacts& f = facts(format);
  const double half_spacing = std::ldexp(0.5, std::ilogb(f.max_finite) - f.mantissa_bits);
  return std::bit_cast<std::int32_t>(static_cast<float>(f.max_finite + half_spacing));
}

class AdamwPlan : public Plan {
 public:
  explicit AdamwPlan(const Problem& p)
      : layout_(p),
        formats_(p.formats),
        count_(p.dim("count")),
        beta1_(p.constant("beta1")),
        beta2_(p.constant("beta2")),
        eps_(p.constant("eps")),
        weight_decay_(p.constant("weight_decay")),
        value_overflow_(least_overflowing_bits(formats_[layout_.param])),
        moment_overflow_(least_overflowing_bits(formats_[layout_.moment1])) {}

  void run(const Launch& launch) const override {
    auto* control = static_cast<double*>(launch.operands[layout_.control]);
    if (slot(control, Slot::apply) == 0) return;
    const AdamwScalars scalars = read_scalars(control);
    std::atomic<bool> is_finite = true;
    parallel_ranges(
        count_, kRowChunk,
        [&](int, std::int64_t begin, std::int64_t end) {
          if (!update_range(launch, scalars, begin, end)) is_finite.store(false, std::memory_order_relaxed);
        },
        kSerialBelow);
    if (!is_finite) slot(control, Slot::state_nonfinite) = 1;
  }

  std::string implementation() const override { return fmt::format("mixroof {}", HWY_DYNAMIC_DISPATCH(target_name)()); }

 private:
  AdamwScalars read_scalars(const double* control) const {
    const double rate = slot(control, Slot::learning_rate);
    const double factor = slot(control, Slot::grad_factor);
    const double shift = factor < facts(Format::fp32).min_normal ? 0x1p-64 : 1.0;
    return {.grad_shift = static_cast<float>(shift),
            .grad_factor = static_cast<float>(factor / shift),
            .decay = static_cast<float>(1 - rate * weight_decay_),
            .beta1 = static_cast<float>(beta1_),
            .one_minus_beta1 = static_cast<float>(1 - beta1_),
            .beta2 = static_cast<float>(beta2_),
            .one_minus_beta2 = static_cast<float>(1 - beta2_),
            .step = static_cast<float>(rate / slot(control, Slot::bias_correction1)),
            .inverse_correction2 = static_cast<float>(1 / slot(control, Slot::bias_correction2)),
            .eps = static_cast<float>(eps_)};
  }

  /// False when a parameter or moment of [begin, end) came out not finite.
  bool update_range(const Launch& launch, const AdamwScalars& scalars, std::int64_t begin, std::int64_t end) const {
    LargestBits largest;
    for (std::int64_t at = begin; at < end; at += kRowChunk)
      update_chunk(launch, scalars, at, std::min(kRowChunk, end - at), largest);
    return largest.value < value_overflow_ && largest.moment < moment_overflow_;
  }

  void update_chunk(const Launch& launch, const AdamwScalars& scalars, std::int64_t at, std::int64_t count,
                    LargestBits& largest) const {
    RowBuffer grad, value, moment1, moment2;
    const auto row_in_place = [&](std::size_t operand, RowBuffer& buffer) {
      void* tensor = launch.operands[operand];
      load_row(formats_[operand], tensor, at, count, buffer);
      return row_for_store(formats_[operand], tensor, at, buffer);
    };
    const auto store = [&](std::size_t operand, const float* row) {
      store_row(formats_[operand], row, count, launch.operands[operand], at);
    };
    const AdamwRows rows{.grad = load_row(formats_[layout_.grad], launch.operands[layout_.grad], at, count, grad),
                         .value = row_in_place(layout_.state, value),
                         .moment1 = row_in_place(layout_.moment1, moment1),
                         .moment2 = row_in_place(layout_.moment2, moment2)};
    HWY_DYNAMIC_DISPATCH(update_rows)(scalars, rows, count, largest);
    store(layout_.state, rows.value);
    store(layout_.moment1, rows.moment1);
    store(layout_.moment2, rows.moment2);
    if (layout_.has_master) store(layout_.param, rows.value);
  }

  AdamwLayout layout_;
  std::vector<Format> formats_;
  std::int64_t count_;
  double beta1_, beta2_, eps_, weight_decay_;
  std::int32_t value_overflow_, moment_overflow_;
};

Support supports(const Problem& problem, const DeviceFacts&) {
  const AdamwLayout layout(problem);
  for (std::size_t i = 0; i < layout.control; ++i)
    if (const Format format = problem.formats[i]; format != Format::fp32 && !is_16_bit(format))
      return Support::no(fmt::format("adamw does not keep tensors in {}; use fp32, fp16 or bf16", name(format)));
  if (layout.has_master && !is_16_bit(problem.formats[layout.param]))
    return Support::no(fmt::format("a master copy needs 16-bit parameters, these are {}; leave the master out",
                                   name(problem.formats[layout.param])));
  return {};
}

}  // namespace

std::span<const Implementation> adamw_cpu() {
  static constexpr Implementation kTable[] = {{"adamw", "cpu", "mixroof", supports, prepare_plan<AdamwPlan>}};
  return kTable;
}

}  // namespace mixroof
#endif  // HWY_ONCE
