// Finite check and squared norm on the CPU. Squares are summed in double in an order that depends on count and worker
// count alone: lanes within a chunk, chunks within a worker's range, then the workers.
//
// Squares of finite fp32 values stay below 2^256, so 2^63 of them cannot overflow a double: the sum is finite exactly
// when every gradient is, and the finite check costs nothing.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/grad_check/grad_check_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/vector-inl.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/backend/cpu/parallel.h"
#include "kernels/control.h"
#include "kernels/grad_check/grad_check.h"
#include "kernels/implementation.h"
#include "kernels/row_buffer.h"

HWY_BEFORE_NAMESPACE();
namespace mixroof::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

double row_square_sum(const float* HWY_RESTRICT x, std::int64_t count) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> d_float;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto add_square = [&](std::int64_t at, auto& sum) HWY_ATTR {
    const auto value = hn::PromoteTo(d, hn::LoadU(d_float, x + at));
    sum = hn::MulAdd(value, value, sum);
  };
  // Four sums hide the latency of the multiply-add.
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    add_square(i, sum0);
    add_square(i + lanes, sum1);
    add_square(i + 2 * lanes, sum2);
    add_square(i + 3 * lanes, sum3);
  }
  for (; i + lanes <= count; i += lanes) add_square(i, sum0);
  double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
  for (; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

double square_sum(Format format, const void* grad, std::int64_t begin, std::int64_t end) {
  RowBuffer buffer;
  double sum = 0;
  for (std::int64_t at = begin; at < end; at += kRowChunk) {
    const std::int64_t count = std::min(kRowChunk, end - at);
    sum += row_square_sum(load_row(format, grad, at, count, buffer), count);
  }
  return sum;
}

}  // namespace
}  // namespace mixroof::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mixroof {
namespace {

HWY_EXPORT(square_sum);
HWY_EXPORT(target_name);

// Below this many elements a second worker costs more than it saves.
constexpr std::int64_t kSerialBelow = 32 * kRowChunk;

class GradCheckPlan : public Plan {
 public:
  explicit GradCheckPlan(const Problem& problem)
      : count_(problem.dim("count")), format_(problem.formats[0]), accumulate_(problem.accumulate) {}

  void run(const Launch& launch) const override {
    const void* grad = launch.operands[0];
    auto* control = static_cast<double*>(launch.operands[1]);
    auto* partials = static_cast<double*>(launch.workspace);
    const int workers = worker_count();
    std::fill_n(partials, workers, 0.0);
    parallel_ranges(
        count_, kRowChunk,
        [&](int worker, std::int64_t begin, std::int64_t end) {
          partials[worker] = HWY_DYNAMIC_DISPATCH(square_sum)(format_, grad, begin, end);
        },
        kSerialBelow);
    double sum = 0;
    for (int worker = 0; worker < workers; ++worker) sum += partials[worker];
    if (!std::isfinite(sum)) slot(control, Slot::found_inf) = 1;
    slot(control, Slot::grad_square_sum) = sum + (accumulate_ ? slot(control, Slot::grad_square_sum) : 0.0);
  }

  std::string implementation() const override { return fmt::format("mixroof {}", HWY_DYNAMIC_DISPATCH(target_name)()); }

 private:
  std::int64_t count_;
  Format format_;
  bool accumulate_;
};

Support supports(const Problem& problem, const DeviceFacts&) {
  const Format grad = problem.formats[0];
  if (grad == Format::fp32 || is_16_bit(grad)) return {};
  return Support::no(fmt::format("gradients in {} are not checked here; use fp32, fp16 or bf16", name(grad)));
}

}  // namespace

std::span<const Implementation> grad_check_cpu() {
  static constexpr Implementation kTable[] = {{"grad_check", "cpu", "mixroof", supports, prepare_plan<GradCheckPlan>}};
  return kTable;
}

}  // namespace mixroof
#endif  // HWY_ONCE
