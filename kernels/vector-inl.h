// Loops over fp32 arrays for Highway code, once per target (included after foreach_target.h, as Highway's own -inl
// headers are). Partial loads read no byte past the array: the rest of a loop runs on single lanes.
#if defined(MIXROOF_KERNELS_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MIXROOF_KERNELS_VECTOR_INL_H_
#undef MIXROOF_KERNELS_VECTOR_INL_H_
#else
#define MIXROOF_KERNELS_VECTOR_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace mixroof {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Calls f(d, i) for i = 0, lanes, … with full vectors of fp32, then with one-lane vectors for the rest.
template <class F>
HWY_INLINE void for_each_vector(std::int64_t n, F f) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(d, i);
  for (; i < n; ++i) f(hn::CappedTag<float, 1>(), i);
}

/// The path that this copy of the code takes, named as DeviceFacts::paths names it.
HWY_MAYBE_UNUSED inline const char* target_name() {
  return HWY_TARGET == HWY_AVX3 ? "avx512" : HWY_TARGET == HWY_AVX2 ? "avx2" : hwy::TargetName(HWY_TARGET);
}

}  // namespace HWY_NAMESPACE
}  // namespace mixroof
HWY_AFTER_NAMESPACE();

#endif  // MIXROOF_KERNELS_VECTOR_INL_H_
