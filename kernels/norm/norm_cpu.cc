// Layer norm and RMS norm on the CPU: one row at a time as fp32, sums in several vector accumulators whose chunk totals are added in
// double. Weight and bias gradients are summed per worker in workspace and added in the workers' order.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/norm_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/add_rows-inl.h"
#include "kernels/vector-inl.h"

#include <cmath>
#include <cstring>
#include <string>

#include "harness/backend/cpu/parallel.h"
#include "kernels/implementation.h"
#include "kernels/norm/layout.h"
#include "kernels/norm/norm.h"
#include "kernels/row_buffer.h"

HWY_BEFORE_NAMESPACE();
namespace mixroof {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

/// Σ term(d, i) over [0, n): four vector accumulators within a chunk, chunks added in double.
template <class F>
HWY_INLINE double sum_terms(std::int64_t n, F term) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> d1;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  double total = 0;
  for (std::int64_t at = 0; at < n; at += kRowChunk) {
    const std::int64_t end = at + kRowChunk < n ? at + kRowChunk : n;
    auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
    std::int64_t i = at;
    for (; i + 4 * lanes <= end; i += 4 * lanes) {
      s0 = hn::Add(s0, term(d, i));
      s1 = hn::Add(s1, term(d, i + lanes));
      s2 = hn::Add(s2, term(d, i + 2 * lanes));
      s3 = hn::Add(s3, term(d, i + 3 * lanes));
    }
    for (; i + lanes <= end; i += lanes) s0 = hn::Add(s0, term(d, i));
    auto tail = hn::Zero(d1);
    for (; i < end; ++i) tail = hn::Add(tail, term(d1, i));
    const auto sum = hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
    total += static_cast<double>(hn::GetLane(sum)) + static_cast<double>(hn::GetLane(tail));
  }
  return total;
}

using norm_detail::BackwardRow;
using norm_detail::ForwardRow;

/// y[width] and the statistics of a row. Not centred: RMS norm.
template <bool kCentred>
HWY_INLINE void forward_row_of(const ForwardRow& row, double eps, std::int64_t width) {
  const float *HWY_RESTRICT x = row.x, *HWY_RESTRICT weight = row.weight, *HWY_RESTRICT bias = row.bias;
  float* y = row.y;
  const auto n = static_cast<double>(width);
  float mean = 0;
  if constexpr (kCentred) {
    mean = static_cast<float>(
        sum_terms(width, [=](auto d, std::int64_t i) HWY_ATTR { return hn::LoadU(d, x + i); }) / n);
    *row.mean = mean;
  }
  const auto centred_at = [=](auto d, std::int64_t i) HWY_ATTR {
    const auto v = hn::LoadU(d, x + i);
    if constexpr (kCentred) return hn::Sub(v, hn::Set(d, mean));
    return v;
  };
  const double squares = sum_terms(width, [=](auto d, std::int64_t i) HWY_ATTR {
    const auto centred = centred_at(d, i);
    return hn::Mul(centred, centred);
  });
  const float rstd = static_cast<float>(1 / std::sqrt(squares / n + eps));
  *row.rstd = rstd;
  for_each_vector(width, [=](auto d, std::int64_t i) HWY_ATTR {
    const auto xhat = hn::Mul(centred_at(d, i), hn::Set(d, rstd));
    const auto w = hn::LoadU(d, weight + i);
    if constexpr (kCentred)
      hn::StoreU(hn::MulAdd(xhat, w, hn::LoadU(d, bias + i)), d, y + i);
    else
      hn::StoreU(hn::Mul(xhat, w), d, y + i);
  });
}

/// dx[width] of a row; adds the row to dweight[width] and dbias[width]. Not centred: RMS norm.
template <bool kCentred>
HWY_INLINE void backward_row_of(const BackwardRow& row, std::int64_t width) {
  const float *HWY_RESTRICT dy = row.dy, *HWY_RESTRICT x = row.x, *HWY_RESTRICT weight = row.weight;
  float *HWY_RESTRICT dweight = row.dweight, *HWY_RESTRICT dbias = row.dbias;
  const float mean = row.mean, rstd = row.rstd;
  const float* dresidual = row.dresidual;
  float* dx = row.dx;
  const auto xhat_at = [=](auto d, std::int64_t i) HWY_ATTR {
    const auto v = hn::LoadU(d, x + i);
    if constexpr (kCentred) return hn::Mul(hn::Sub(v, hn::Set(d, mean)), hn::Set(d, rstd));
    return hn::Mul(v, hn::Set(d, rstd));
  };
  const auto g_at = [=](auto d, std::int64_t i)
                        HWY_ATTR { return hn::Mul(hn::LoadU(d, dy + i), hn::LoadU(d, weight + i)); };
  const auto n = static_cast<double>(width);
  const float g_mean = kCentred ? static_cast<float>(sum_terms(width, g_at) / n) : 0.0f;
  const auto gx_mean = static_cast<float>(
      sum_terms(width, [=](auto d, std::int64_t i) HWY_ATTR { return hn::Mul(g_at(d, i), xhat_at(d, i)); }) / n);
  for_each_vector(width, [=](auto d, std::int64_t i) HWY_ATTR {
    const auto xhat = xhat_at(d, i);
    auto centred = g_at(d, i);
    if constexpr (kCentred) centred = hn::Sub(centred, hn::Set(d, g_mean));
    const auto scaled = hn::Mul(hn::NegMulAdd(xhat, hn::Set(d, gx_mean), centred), hn::Set(d, rstd));
    const auto upstream = hn::LoadU(d, dy + i);
    hn::StoreU(hn::MulAdd(upstream, xhat, hn::LoadU(d, dweight + i)), d, dweight + i);
    if constexpr (kCentred) hn::StoreU(hn::Add(upstream, hn::LoadU(d, dbias + i)), d, dbias + i);
    hn::StoreU(dresidual ? hn::Add(scaled, hn::LoadU(d, dresidual + i)) : scaled, d, dx + i);
  });
}

void forward_row(const ForwardRow& row, double eps, std::int64_t width) { forward_row_of<true>(row, eps, width); }
void rms_forward_row(const ForwardRow& row, double eps, std::int64_t width) { forward_row_of<false>(row, eps, width); }
void backward_row(const BackwardRow& row, std::int64_t width) { backward_row_of<true>(row, width); }
void rms_backward_row(const BackwardRow& row, std::int64_t width) { backward_row_of<false>(row, width); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mixroof
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mixroof {
namespace {

HWY_EXPORT(target_name);
HWY_EXPORT(forward_row);
HWY_EXPORT(rms_forward_row);
HWY_EXPORT(backward_row);
HWY_EXPORT(rms_backward_row);
HWY_EXPORT(add_rows);

using norm_detail::BackwardOperands;
using norm_detail::ForwardOperands;
using norm_detail::kAbsent;

// Elements below which a second worker is not worth waking.
constexpr std::int64_t kSerialElements = 8192;

class NormPlan : public Plan {
 public:
  explicit NormPlan(const Problem& problem)
      : rows_(problem.dim("rows")),
        width_(problem.dim("width")),
        is_rms_(norm_detail::is_rms(problem)),
        eps_(problem.constant("eps")),
        formats_(problem.formats) {}

  std::string implementation() const override { return std::string("mixroof ") + HWY_DYNAMIC_DISPATCH(target_name)(); }

 protected:
  /// Row `row` of a worker's scratch of `rows_per_worker` rows.
  float* scratch(const Launch& launch, std::int64_t rows_per_worker, int worker, std::int64_t row) const {
    return static_cast<float*>(launch.workspace) + (worker * rows_per_worker + row) * norm_detail::row_stride(width_);
  }
  /// Null when the variant does not have the operand.
  const float* load(const Launch& launch, std::size_t operand, std::int64_t row, float* buffer) const {
    if (operand == kAbsent) return nullptr;
    return load_row(formats_[operand], launch.operands[operand], row * width_, width_, buffer);
  }
  /// Statistics of every row; null when the variant does not have them.
  static float* statistics(const Launch& launch, std::size_t operand) {
    return operand == kAbsent ? nullptr : static_cast<float*>(launch.operands[operand]);
  }
  std::int64_t serial_rows() const { return kSerialElements / width_; }

  std::int64_t rows_, width_;
  bool is_rms_;
  double eps_;
  std::vector<Format> formats_;
};

class ForwardPlan final : public NormPlan {
 public:
  explicit ForwardPlan(const Problem& problem) : NormPlan(problem), at_(problem) {}

  void run(const Launch& launch) const override {
    parallel_ranges(
        rows_, 1, [&](int worker, std::int64_t begin, std::int64_t end) { run_rows(launch, worker, begin, end); },
        serial_rows());
  }

 private:
  void run_rows(const Launch& launch, int worker, std::int64_t begin, std::int64_t end) const {
    const auto row_of = [&](std::int64_t row) { return scratch(launch, norm_detail::kForwardRows, worker, row); };
    const auto normalize = is_rms_ ? HWY_DYNAMIC_DISPATCH(rms_forward_row) : HWY_DYNAMIC_DISPATCH(forward_row);
    const float* weight = load(launch, at_.weight, 0, row_of(0));
    const float* bias = load(launch, at_.bias, 0, row_of(1));
    float *mean = statistics(launch, at_.mean), *rstd = statistics(launch, at_.rstd);
    for (std::int64_t row = begin; row < end; ++row) {
      const float* x = load(launch, at_.x, row, row_of(2));
      float* y = row_for_store(formats_[at_.y], launch.operands[at_.y], row * width_, row_of(3));
      normalize({x, weight, bias, y, mean ? mean + row : nullptr, rstd + row}, eps_, width_);
      store_row(formats_[at_.y], y, width_, launch.operands[at_.y], row * width_);
    }
  }

  ForwardOperands at_;
};

class BackwardPlan final : public NormPlan {
 public:
  explicit BackwardPlan(const Problem& problem)
      : NormPlan(problem),
        accumulate_(problem.accumulate),
        at_(problem) {}

  void run(const Launch& launch) const override {
    // Every worker's sums start at zero, also of workers that get no rows, so that the reduction reads all of them.
    const int workers = worker_count();
    for (int worker = 0; worker < workers; ++worker)
      for (const std::int64_t row : {kDweightRow, kDbiasRow})
        std::memset(row_of(launch, worker, row), 0, static_cast<std::size_t>(width_) * sizeof(float));
    parallel_ranges(
        rows_, 1, [&](int worker, std::int64_t begin, std::int64_t end) { run_rows(launch, worker, begin, end); },
        serial_rows());
    reduce(launch, workers, kDweightRow, at_.dweight);
    if (at_.dbias != kAbsent) reduce(launch, workers, kDbiasRow, at_.dbias);
  }

 private:
  static constexpr std::int64_t kDweightRow = 0, kDbiasRow = 1;

  float* row_of(const Launch& launch, int worker, std::int64_t row) const {
    return scratch(launch, norm_detail::kBackwardRows, worker, row);
  }

  void run_rows(const Launch& launch, int worker, std::int64_t begin, std::int64_t end) const {
    const auto buffer = [&](std::int64_t row) { return row_of(launch, worker, row); };
    const auto add_row = is_rms_ ? HWY_DYNAMIC_DISPATCH(rms_backward_row) : HWY_DYNAMIC_DISPATCH(backward_row);
    const float* weight = load(launch, at_.weight, 0, buffer(2));
    const float *mean = statistics(launch, at_.mean), *rstd = statistics(launch, at_.rstd);
    for (std::int64_t row = begin; row < end; ++row) {
      const float* dy = load(launch, at_.dy, row, buffer(3));
      const float* x = load(launch, at_.x, row, buffer(4));
      const float* dresidual = load(launch, at_.dresidual, row, buffer(5));
      float* dx = row_for_store(formats_[at_.dx], launch.operands[at_.dx], row * width_, buffer(6));
      add_row({dy, x, weight, dresidual, mean ? mean[row] : 0, rstd[row], dx, buffer(kDweightRow), buffer(kDbiasRow)},
              width_);
      store_row(formats_[at_.dx], dx, width_, launch.operands[at_.dx], row * width_);
    }
  }

  /// Adds the workers' sums in order, then what the operand held, and rounds once.
  void reduce(const Launch& launch, int workers, std::int64_t row, std::size_t operand) const {
    float* sum = row_of(launch, 0, row);
    for (int worker = 1; worker < workers; ++worker)
      HWY_DYNAMIC_DISPATCH(add_rows)(sum, row_of(launch, worker, row), sum, width_);
    if (accumulate_) HWY_DYNAMIC_DISPATCH(add_rows)(sum, load(launch, operand, 0, row_of(launch, 0, 3)), sum, width_);
    encode(formats_[operand], sum, launch.operands[operand], width_);
  }

  bool accumulate_;
  BackwardOperands at_;
};

std::unique_ptr<Plan> prepare(const Problem& problem, const PrepareContext&) {
  if (norm_detail::is_backward(problem)) return std::make_unique<BackwardPlan>(problem);
  return std::make_unique<ForwardPlan>(problem);
}

constexpr Implementation kImplementations[] = {{"norm", "cpu", "mixroof", supports_all, prepare}};

}  // namespace

std::span<const Implementation> norm_cpu() { return kImplementations; }

}  // namespace mixroof
#endif
