// Cross entropy on the CPU: two sweeps over a row in chunks that stay in the L1 cache. The first finds maximum and sum
// online (arXiv 1805.02867, by chunks instead of elements), the second writes the gradient.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cross_entropy/cross_entropy_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
#include "kernels/vector-inl.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "harness/backend/cpu/parallel.h"
#include "kernels/control.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/implementation.h"
#include "kernels/row_buffer.h"

HWY_BEFORE_NAMESPACE();
namespace mixroof {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

/// e^(x - maximum). Clamped where it is 0 in fp32 anyway, since Exp wants a quotient that fits an int32.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_below(D d, V x, V maximum) {
  return hn::Exp(d, hn::Max(hn::Sub(x, maximum), hn::Set(d, -105.0f)));
}

/// Largest of n logits. `poison` becomes NaN when one of them is not finite, which Max and Exp would hide, else 0.
float largest_logit(const float* HWY_RESTRICT x, std::int64_t n, float* HWY_RESTRICT poison) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto largest = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto product = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    largest = hn::Max(largest, v);
    product = hn::MulAdd(v, hn::Zero(d), product);
  }
  float maximum = hn::GetLane(hn::MaxOfLanes(d, largest));
  *poison = hn::GetLane(hn::SumOfLanes(d, product));
  for (; i < n; ++i) {
    maximum = x[i] > maximum ? x[i] : maximum;
    *poison += x[i] * 0.0f;
  }
  return maximum;
}

/// Σ e^(x - maximum), in an order that depends on n and the target only.
float sum_of_exponentials(const float* HWY_RESTRICT x, std::int64_t n, float maximum) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> d1;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto m = hn::Set(d, maximum);
  // Four sums: the additions need not wait for each other, and each one is short.
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    sum0 = hn::Add(sum0, exp_below(d, hn::LoadU(d, x + i), m));
    sum1 = hn::Add(sum1, exp_below(d, hn::LoadU(d, x + i + lanes), m));
    sum2 = hn::Add(sum2, exp_below(d, hn::LoadU(d, x + i + 2 * lanes), m));
    sum3 = hn::Add(sum3, exp_below(d, hn::LoadU(d, x + i + 3 * lanes), m));
  }
  for (; i + lanes <= n; i += lanes) sum0 = hn::Add(sum0, exp_below(d, hn::LoadU(d, x + i), m));
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
  for (; i < n; ++i) sum += hn::GetLane(exp_below(d1, hn::LoadU(d1, x + i), hn::Set(d1, maximum)));
  return sum;
}

/// gradient[j] = e^(x[j] - maximum) · scale; may be in place.
void scaled_exponentials(const float* x, float* gradient, std::int64_t n, float maximum, float scale) {
  for_each_vector(n, [=](auto d, std::int64_t i) HWY_ATTR {
    const auto e = exp_below(d, hn::LoadU(d, x + i), hn::Set(d, maximum));
    hn::StoreU(hn::Mul(e, hn::Set(d, scale)), d, gradient + i);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mixroof
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mixroof {
namespace {

HWY_EXPORT(target_name);
HWY_EXPORT(largest_logit);
HWY_EXPORT(sum_of_exponentials);
HWY_EXPORT(scaled_exponentials);

/// Maximum of a row's logits and Σ e^(x - maximum); the sum is NaN when a logit is not finite.
struct RowSum {
  float maximum = -std::numeric_limits<float>::infinity();
  double sum = 0;

  void add_chunk(const float* x, std::int64_t n) {
    float poison = 0;
    const float largest = HWY_DYNAMIC_DISPATCH(largest_logit)(x, n, &poison);
    if (largest > maximum) {
      sum *= std::exp(static_cast<double>(maximum) - static_cast<double>(largest));
      maximum = largest;
    }
    sum += HWY_DYNAMIC_DISPATCH(sum_of_exponentials)(x, n, maximum) + poison;
  }
};

class CrossEntropyPlan final : public Plan {
 public:
  explicit CrossEntropyPlan(const Problem& p)
      : rows_(p.dim("rows")), vocab_(p.dim("vocab")), logits_(p.formats[0]), accumulate_(p.accumulate) {}

  std::string implementation() const override { return std::string("mixroof ") + HWY_DYNAMIC_DISPATCH(target_name)(); }

  void run(const Launch& launch) const override {
    const auto* targets = static_cast<const std::int32_t*>(launch.operands[1]);
    auto* losses = static_cast<float*>(launch.operands[2]);
    auto* control = static_cast<double*>(launch.operands[3]);
    const double effective = slot(control, Slot::effective_tokens);
    const double factor = effective > 0 ? slot(control, Slot::loss_scale) / effective : 0.0;
    parallel_ranges(
        rows_, 1,
        [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t r = begin; r < end; ++r) losses[r] = run_row(launch.operands[0], r, targets[r], factor);
        },
        kSerialBelow / vocab_);
    double loss_sum = accumulate_ ? slot(control, Slot::loss_sum) : 0.0;
    for (std::int64_t r = 0; r < rows_; ++r) loss_sum += losses[r];
    slot(control, Slot::loss_sum) = loss_sum;
  }

 private:
  // Fewer logits than this are done before a second worker has started.
  static constexpr std::int64_t kSerialBelow = 4096;

  /// Replaces a row's logits by their gradient and returns its loss.
  float run_row(void* tensor, std::int64_t row, std::int32_t target, double factor) const {
    const std::int64_t first = row * vocab_;
    if (target < 0) {
      // Zero is all bits zero in every format.
      std::memset(element_address(logits_, tensor, first), 0, static_cast<std::size_t>(vocab_ * bytes_of(logits_)));
      return 0.0f;
    }
    RowBuffer buffer;
    const float target_logit = *load_row(logits_, tensor, first + target, 1, buffer);
    RowSum row_sum;
    for_chunks(vocab_, [&](std::int64_t at, std::int64_t n) {
      row_sum.add_chunk(load_row(logits_, tensor, first + at, n, buffer), n);
    });
    write_gradient(tensor, first, target, target_logit, row_sum, factor);
    // In double, where the large m and x_t of a shifted row cancel without loss.
    return static_cast<float>(row_sum.maximum + std::log(row_sum.sum) - target_logit);
  }

  void write_gradient(void* tensor, std::int64_t first, std::int32_t target, float target_logit, const RowSum& row_sum,
                      double factor) const {
    const auto scale = static_cast<float>(factor / row_sum.sum);
    // In double: p - 1 cancels where the model is sure.
    const double target_exponential = std::exp(static_cast<double>(target_logit) - row_sum.maximum);
    const auto target_gradient = static_cast<float>((target_exponential / row_sum.sum - 1) * factor);
    RowBuffer in, out;
    for_chunks(vocab_, [&](std::int64_t at, std::int64_t n) {
      const float* x = load_row(logits_, tensor, first + at, n, in);
      float* gradient = row_for_store(logits_, tensor, first + at, out);
      HWY_DYNAMIC_DISPATCH(scaled_exponentials)(x, gradient, n, row_sum.maximum, scale);
      if (target >= at && target < at + n) gradient[target - at] = target_gradient;
      store_row(logits_, gradient, n, tensor, first + at);
    });
  }

  std::int64_t rows_, vocab_;
  Format logits_;
  bool accumulate_;
};

constexpr Implementation kImplementations[] = {
    {"cross_entropy", "cpu", "mixroof", supports_all, prepare_plan<CrossEntropyPlan>}};

}  // namespace

std::span<const Implementation> cross_entropy_cpu() { return kImplementations; }

}  // namespace mixroof
#endif
