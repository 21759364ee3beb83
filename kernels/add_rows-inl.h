// Sum of two fp32 arrays for Highway code, once per target (included after foreach_target.h, as Highway's own -inl
// headers are).
#if defined(MIXROOF_KERNELS_ADD_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MIXROOF_KERNELS_ADD_ROWS_INL_H_
#undef MIXROOF_KERNELS_ADD_ROWS_INL_H_
#else
#define MIXROOF_KERNELS_ADD_ROWS_INL_H_
#endif

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mixroof {
namespace HWY_NAMESPACE {

/// sum[i] = a[i] + b[i] for i < n. `sum` may be `a` or `b` itself.
HWY_MAYBE_UNUSED inline void add_rows(const float* a, const float* b, float* sum, std::int64_t n) {
  for_each_vector(n, [=](auto d, std::int64_t i)
                         HWY_ATTR { hn::StoreU(hn::Add(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, sum + i); });
}

}  // namespace HWY_NAMESPACE
}  // namespace mixroof
HWY_AFTER_NAMESPACE();

#endif  // MIXROOF_KERNELS_ADD_ROWS_INL_H_
