// GELU on the CPU: chunks of fp32 in the L1 cache, one exponential per element.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation/activation_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
#include "kernels/vector-inl.h"

#include <string>

#include "harness/backend/cpu/parallel.h"
#include "kernels/activation/activation.h"
#include "kernels/implementation.h"
#include "kernels/row_buffer.h"

HWY_BEFORE_NAMESPACE();
namespace mixroof {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Beyond ±12 σ is 0 or 1 in fp32, and e^-2|u| (e^-142) is below every subnormal.
constexpr float kSaturated = 12.0f;
constexpr float kTwoRoot2OverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

template <class D, class V = hn::Vec<D>>
struct Logistic {
  V x, sigma, complement;  // x within ±kSaturated, σ(2u), 1 - σ(2u)
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE Logistic<D> logistic_of(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V bound = hn::Set(d, kSaturated);
  // Not Min and Max: a NaN must stay one.
  const V low = hn::IfThenElse(hn::Lt(x, hn::Neg(bound)), hn::Neg(bound), x);
  const V c = hn::IfThenElse(hn::Gt(low, bound), bound, low);
  const V two_u = hn::Mul(hn::Mul(hn::MulAdd(hn::Mul(c, c), hn::Set(d, kCubic), one), c), hn::Set(d, kTwoRoot2OverPi));
  const V e = hn::Exp(d, hn::Neg(hn::Abs(two_u)));
  const V larger = hn::Div(one, hn::Add(one, e));
  const V smaller = hn::Mul(e, larger);
  const auto is_negative = hn::Lt(c, hn::Zero(d));
  return {c, hn::IfThenElse(is_negative, smaller, larger), hn::IfThenElse(is_negative, larger, smaller)};
}

template <class D>
HWY_INLINE void gelu_at(D d, const float* HWY_RESTRICT x, float* HWY_RESTRICT y, std::int64_t i) {
  const auto v = hn::LoadU(d, x + i);
  const auto s = logistic_of(d, v);
  // The clamped x on the left keeps -inf · 0 from becoming NaN, the true one on the right keeps large x.
  const auto factor = hn::IfThenElse(hn::Lt(v, s.x), s.x, v);
  hn::StoreU(hn::Mul(factor, s.sigma), d, y + i);
}

template <class D>
HWY_INLINE void gelu_backward_at(D d, const float* HWY_RESTRICT dy, const float* HWY_RESTRICT x, float* HWY_RESTRICT dx,
                                 std::int64_t i) {
  const auto s = logistic_of(d, hn::LoadU(d, x + i));
  const auto two_du =
      hn::MulAdd(hn::Mul(s.x, s.x), hn::Set(d, 3 * kCubic * kTwoRoot2OverPi), hn::Set(d, kTwoRoot2OverPi));
  const auto bend = hn::Mul(hn::Mul(s.x, two_du), s.complement);
  const auto slope = hn::MulAdd(bend, s.sigma, s.sigma);
  hn::StoreU(hn::Mul(hn::LoadU(d, dy + i), slope), d, dx + i);
}

void gelu(const float* HWY_RESTRICT x, float* HWY_RESTRICT y, std::int64_t n) {
  for_each_vector(n, [=](auto d, std::int64_t i) HWY_ATTR { gelu_at(d, x, y, i); });
}

void gelu_backward(const float* HWY_RESTRICT dy, const float* HWY_RESTRICT x, float* HWY_RESTRICT dx, std::int64_t n) {
  for_each_vector(n, [=](auto d, std::int64_t i) HWY_ATTR { gelu_backward_at(d, dy, x, dx, i); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mixroof
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mixroof {
namespace {

HWY_EXPORT(target_name);
HWY_EXPORT(gelu);
HWY_EXPORT(gelu_backward);

// Fewer elements than this are done before a second worker has started.
constexpr std::int64_t kSerialBelow = 4096;

class ActivationPlan final : public Plan {
 public:
  explicit ActivationPlan(const Problem& problem)
      : count_(problem.dim("count")), formats_(problem.formats), is_backward_(problem.variant == "gelu_backward") {}

  std::string implementation() const override { return std::string("mixroof ") + HWY_DYNAMIC_DISPATCH(target_name)(); }

  void run(const Launch& launch) const override {
    parallel_ranges(
        count_, kRowChunk,
        [&](int, std::int64_t begin, std::int64_t end) {
          for_chunks(end - begin, [&](std::int64_t at, std::int64_t n) { run_chunk(launch, begin + at, n); });
        },
        kSerialBelow);
  }

 private:
  void run_chunk(const Launch& launch, std::int64_t first, std::int64_t n) const {
    RowBuffer a, b, out;
    const auto& tensors = launch.operands;
    const float* x0 = load_row(formats_[0], tensors[0], first, n, a);
    const std::size_t last = tensors.size() - 1;
    float* result = row_for_store(formats_[last], tensors[last], first, out);
    if (is_backward_)
      HWY_DYNAMIC_DISPATCH(gelu_backward)(x0, load_row(formats_[1], tensors[1], first, n, b), result, n);
    else
      HWY_DYNAMIC_DISPATCH(gelu)(x0, result, n);
    store_row(formats_[last], result, n, tensors[last], first);
  }

  std::int64_t count_;
  std::vector<Format> formats_;
  bool is_backward_;
};

constexpr Implementation kImplementations[] = {
    {"activation", "cpu", "mixroof", supports_all, prepare_plan<ActivationPlan>}};

}  // namespace

std::span<const Implementation> activation_cpu() { return kImplementations; }

}  // namespace mixroof
#endif
