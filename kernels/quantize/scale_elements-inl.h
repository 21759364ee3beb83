// The passes over fp32 rows that quantizing kernels are made of, once per target (as kernels/vector-inl.h, which goes
// before).
#if defined(MIXROOF_KERNELS_SCALE_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MIXROOF_KERNELS_SCALE_ELEMENTS_INL_H_
#undef MIXROOF_KERNELS_SCALE_ELEMENTS_INL_H_
#else
#define MIXROOF_KERNELS_SCALE_ELEMENTS_INL_H_
#endif

#include "kernels/quantize/findings.h"

HWY_BEFORE_NAMESPACE();
namespace mixroof {
namespace HWY_NAMESPACE {

/// |x| as bits that order as whole numbers.
template <class D>
HWY_INLINE auto magnitude_bits(D d, const float* HWY_RESTRICT x) {
  const hn::RebindToSigned<D> d_int;
  return hn::And(hn::BitCast(d_int, hn::LoadU(d, x)), hn::Set(d_int, 0x7FFFFFFF));
}

/// Largest magnitude bits of x[0, count).
HWY_INLINE std::int32_t largest_magnitude(const float* HWY_RESTRICT x, std::int64_t count) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> d_int;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto amax = hn::Zero(d_int);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) amax = hn::Max(amax, magnitude_bits(d, x + i));
  std::int32_t largest = hn::GetLane(hn::MaxOfLanes(d_int, amax));
  for (; i < count; ++i) largest = HWY_MAX(largest, mixroof::magnitude_bits(x[i]));
  return largest;
}

/// y = x · scale for whole vectors of [begin, count), counting what saturates and what becomes zero; returns where it
/// stopped. `scale_at(d, i)` gives the scales of d's lanes from element i on.
template <class D, class ScaleAt>
HWY_INLINE std::int64_t scale_vectors(D d, const float* HWY_RESTRICT x, ScaleAt scale_at, const Thresholds& t,
                                      float* HWY_RESTRICT y, std::int64_t begin, std::int64_t count,
                                      Findings& findings) {
  const hn::RebindToSigned<D> d_int;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto saturates_above = hn::Set(d, t.saturates_above), zero_up_to = hn::Set(d, t.rounds_to_zero);
  auto saturated = hn::Zero(d_int), flushed = hn::Zero(d_int);
  std::int64_t i = begin;
  for (; i + lanes <= count; i += lanes) {
    const auto value = hn::LoadU(d, x + i);
    const auto scaled = hn::Mul(value, scale_at(d, i));
    const auto magnitude = hn::Abs(scaled);
    hn::StoreU(scaled, d, y + i);
    // A true lane is -1.
    const auto is_saturated = hn::VecFromMask(d, hn::Gt(magnitude, saturates_above));
    const auto is_flushed = hn::VecFromMask(d, hn::And(hn::Le(magnitude, zero_up_to), hn::Ne(value, hn::Zero(d))));
    saturated = hn::Sub(saturated, hn::BitCast(d_int, is_saturated));
    flushed = hn::Sub(flushed, hn::BitCast(d_int, is_flushed));
  }
  findings.saturated += hn::GetLane(hn::SumOfLanes(d_int, saturated));
  findings.flushed += hn::GetLane(hn::SumOfLanes(d_int, flushed));
  return i;
}

/// The same for all of x[0, count).
template <class ScaleAt>
HWY_INLINE void scale_elements(const float* x, ScaleAt scale_at, const Thresholds& t, float* y, std::int64_t count,
                               Findings& findings) {
  const std::int64_t tail = scale_vectors(hn::ScalableTag<float>(), x, scale_at, t, y, 0, count, findings);
  scale_vectors(hn::CappedTag<float, 1>(), x, scale_at, t, y, tail, count, findings);
}

}  // namespace HWY_NAMESPACE
}  // namespace mixroof
HWY_AFTER_NAMESPACE();

#endif  // MIXROOF_KERNELS_SCALE_ELEMENTS_INL_H_
