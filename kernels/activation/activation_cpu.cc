// GELU and SwiGLU on the CPU: chunks of fp32 in the L1 cache, one exponential per element.
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

// Beyond ±12 σ(2u) is 0 or 1 in fp32, and e^-2|u| (e^-142) is below every subnormal.
constexpr float kGeluSaturated = 12.0f;
// e^-104 is below every subnormal.
constexpr float kSwigluSaturated = 104.0f;
constexpr float kTwoRoot2OverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

template <class D, class V = hn::Vec<D>>
struct Logistic {
  V sigma, complement;  // σ(t), 1 - σ(t)
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE Logistic<D> logistic_of(D d, V t) {
  const V one = hn::Set(d, 1.0f);
  const V e = hn::Exp(d, hn::Neg(hn::Abs(t)));
  const V larger = hn::Div(one, hn::Add(one, e));
  const V smaller = hn::Mul(e, larger);
  const auto is_negative = hn::Lt(t, hn::Zero(d));
  return {hn::IfThenElse(is_negative, smaller, larger), hn::IfThenElse(is_negative, larger, smaller)};
}

/// x within ±bound. Not Min and Max: a NaN must stay one.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V clamped(D d, V x, float bound) {
  const V high = hn::Set(d, bound), low = hn::Neg(high);
  const V raised = hn::IfThenElse(hn::Lt(x, low), low, x);
  return hn::IfThenElse(hn::Gt(raised, high), high, raised);
}

/// x·sigma, `c` being x clamped to where sigma is not yet 0 or 1: c on the left keeps -inf · 0 from becoming NaN, the true
/// x on the right keeps large ones.
template <class V>
HWY_INLINE V times_sigma(V x, V c, V sigma) {
  return hn::Mul(hn::IfThenElse(hn::Lt(x, c), c, x), sigma);
}

/// 2u of a clamped x.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V two_u(D d, V c) {
  const V cubic = hn::MulAdd(hn::Mul(c, c), hn::Set(d, kCubic), hn::Set(d, 1.0f));
  return hn::Mul(hn::Mul(cubic, c), hn::Set(d, kTwoRoot2OverPi));
}

template <class D>
HWY_INLINE void gelu_at(D d, const float* HWY_RESTRICT x, float* HWY_RESTRICT y, std::int64_t i) {
  const auto v = hn::LoadU(d, x + i);
  const auto c = clamped(d, v, kGeluSaturated);
  hn::StoreU(times_sigma(v, c, logistic_of(d, two_u(d, c)).sigma), d, y + i);
}

template <class D>
HWY_INLINE void gelu_backward_at(D d, const float* HWY_RESTRICT dy, const float* HWY_RESTRICT x, float* HWY_RESTRICT dx,
                                 std::int64_t i) {
  const auto c = clamped(d, hn::LoadU(d, x + i), kGeluSaturated);
  const auto s = logistic_of(d, two_u(d, c));
  const auto two_du =
      hn::MulAdd(hn::Mul(c, c), hn::Set(d, 3 * kCubic * kTwoRoot2OverPi), hn::Set(d, kTwoRoot2OverPi));
  const auto bend = hn::Mul(hn::Mul(c, two_du), s.complement);
  const auto slope = hn::MulAdd(bend, s.sigma, s.sigma);
  hn::StoreU(hn::Mul(hn::LoadU(d, dy + i), slope), d, dx + i);
}

template <class D>
HWY_INLINE void swiglu_at(D d, const float* HWY_RESTRICT gate, const float* HWY_RESTRICT up, float* HWY_RESTRICT y,
                          std::int64_t i) {
  const auto t = hn::LoadU(d, gate + i);
  const auto silu = times_sigma(t, clamped(d, t, kSwigluSaturated), logistic_of(d, t).sigma);
  hn::StoreU(hn::Mul(silu, hn::LoadU(d, up + i)), d, y + i);
}

template <class D>
HWY_INLINE void swiglu_backward_at(D d, const float* HWY_RESTRICT dy, const float* HWY_RESTRICT gate,
                                   const float* HWY_RESTRICT up, float* HWY_RESTRICT dgate, float* HWY_RESTRICT dup,
                                   std::int64_t i) {
  const auto t = hn::LoadU(d, gate + i), upstream = hn::LoadU(d, dy + i);
  const auto c = clamped(d, t, kSwigluSaturated);
  const auto s = logistic_of(d, t);
  const auto slope = hn::MulAdd(hn::Mul(c, s.complement), s.sigma, s.sigma);
  hn::StoreU(hn::Mul(upstream, hn::Mul(hn::LoadU(d, up + i), slope)), d, dgate + i);
  hn::StoreU(hn::Mul(upstream, times_sigma(t, c, s.sigma)), d, dup + i);
}

void gelu(const float* HWY_RESTRICT x, float* HWY_RESTRICT y, std::int64_t n) {
  for_each_vector(n, [=](auto d, std::int64_t i) HWY_ATTR { gelu_at(d, x, y, i); });
}

void gelu_backward(const float* HWY_RESTRICT dy, const float* HWY_RESTRICT x, float* HWY_RESTRICT dx, std::int64_t n) {
  for_each_vector(n, [=](auto d, std::int64_t i) HWY_ATTR { gelu_backward_at(d, dy, x, dx, i); });
}

void swiglu(const float* HWY_RESTRICT gate, const float* HWY_RESTRICT up, float* HWY_RESTRICT y, std::int64_t n) {
  for_each_vector(n, [=](auto d, std::int64_t i) HWY_ATTR { swiglu_at(d, gate, up, y, i); });
}

void swiglu_backward(const float* HWY_RESTRICT dy, const float* HWY_RESTRICT gate, const float* HWY_RESTRICT up,
                     float* HWY_RESTRICT dgate, float* HWY_RESTRICT dup, std::int64_t n) {
  for_each_vector(n, [=](auto d, std::int64_t i) HWY_ATTR { swiglu_backward_at(d, dy, gate, up, dgate, dup, i); });
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
HWY_EXPORT(swiglu);
HWY_EXPORT(swiglu_backward);

// Fewer elements than this are done before a second worker has started.
constexpr std::int64_t kSerialBelow = 4096;

std::string path_name() { return std::string("mixroof ") + HWY_DYNAMIC_DISPATCH(target_name)(); }

class GeluPlan final : public Plan {
 public:
  explicit GeluPlan(const Problem& problem)
      : count_(problem.dim("count")), formats_(problem.formats), is_backward_(problem.variant == "gelu_backward") {}

  std::string implementation() const override { return path_name(); }

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

/// Rows are cut into chunks of at most kRowChunk columns, and the chunks shared among the workers.
class SwigluPlan final : public Plan {
 public:
  explicit SwigluPlan(const Problem& problem)
      : rows_(problem.dim("rows")),
        width_(problem.dim("width")),
        formats_(problem.formats),
        is_backward_(problem.variant == "swiglu_backward") {}

  std::string implementation() const override { return path_name(); }

  void run(const Launch& launch) const override {
    const std::int64_t chunks = (width_ + kRowChunk - 1) / kRowChunk;
    const auto run_chunk = [&](std::int64_t row, std::int64_t at) {
      const std::int64_t n = std::min(kRowChunk, width_ - at);
      if (is_backward_)
        run_backward(launch, row, at, n);
      else
        run_forward(launch, row, at, n);
    };
    parallel_ranges(
        rows_ * chunks, 1,
        [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) run_chunk(i / chunks, i % chunks * kRowChunk);
        },
        kSerialBelow / std::min(width_, kRowChunk));
  }

 private:
  /// Columns [at, at + n) of a row; the gate's columns begin at 2·width·row, up's `width` further.
  void run_forward(const Launch& launch, std::int64_t row, std::int64_t at, std::int64_t n) const {
    RowBuffer a, b, out;
    const std::int64_t gate_at = 2 * width_ * row + at, y_at = width_ * row + at;
    const float* gate = load_row(formats_[0], launch.operands[0], gate_at, n, a);
    const float* up = load_row(formats_[0], launch.operands[0], gate_at + width_, n, b);
    float* y = row_for_store(formats_[1], launch.operands[1], y_at, out);
    HWY_DYNAMIC_DISPATCH(swiglu)(gate, up, y, n);
    store_row(formats_[1], y, n, launch.operands[1], y_at);
  }

  void run_backward(const Launch& launch, std::int64_t row, std::int64_t at, std::int64_t n) const {
    RowBuffer a, b, c, out_gate, out_up;
    const std::int64_t gate_at = 2 * width_ * row + at, up_at = gate_at + width_;
    const float* dy = load_row(formats_[0], launch.operands[0], width_ * row + at, n, a);
    const float* gate = load_row(formats_[1], launch.operands[1], gate_at, n, b);
    const float* up = load_row(formats_[1], launch.operands[1], up_at, n, c);
    float* dgate = row_for_store(formats_[2], launch.operands[2], gate_at, out_gate);
    float* dup = row_for_store(formats_[2], launch.operands[2], up_at, out_up);
    HWY_DYNAMIC_DISPATCH(swiglu_backward)(dy, gate, up, dgate, dup, n);
    store_row(formats_[2], dgate, n, launch.operands[2], gate_at);
    store_row(formats_[2], dup, n, launch.operands[2], up_at);
  }

  std::int64_t rows_, width_;
  std::vector<Format> formats_;
  bool is_backward_;
};

std::unique_ptr<Plan> prepare(const Problem& problem, const PrepareContext&) {
  if (problem.variant.starts_with("swiglu")) return std::make_unique<SwigluPlan>(problem);
  return std::make_unique<GeluPlan>(problem);
}

constexpr Implementation kImplementations[] = {{"activation", "cpu", "mixroof", supports_all, prepare}};

}  // namespace

std::span<const Implementation> activation_cpu() { return kImplementations; }

}  // namespace mixroof
#endif
