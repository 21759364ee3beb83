// Layer norm on the CPU: one row at a time as fp32, sums in several vector accumulators whose chunk totals are added in
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

/// y[width] from x[width]; returns the statistics through mean and rstd.
void normalize_row(const float* HWY_RESTRICT x, const float* HWY_RESTRICT weight, const float* HWY_RESTRICT bias,
                   double eps, std::int64_t width, float* y, float* mean, float* rstd) {
  const auto n = static_cast<double>(width);
  const double sum = sum_terms(width, [=](auto d, std::int64_t i) HWY_ATTR { return hn::LoadU(d, x + i); });
  const float m = static_cast<float>(sum / n);
  const double squares = sum_terms(width, [=](auto d, std::int64_t i) HWY_ATTR {
    const auto centred = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, m));
    return hn::Mul(centred, centred);
  });
  const float r = static_cast<float>(1 / std::sqrt(squares / n + eps));
  for_each_vector(width, [=](auto d, std::int64_t i) HWY_ATTR {
    const auto xhat = hn::Mul(hn::Sub(hn::LoadU(d, x + i), hn::Set(d, m)), hn::Set(d, r));
    hn::StoreU(hn::MulAdd(xhat, hn::LoadU(d, weight + i), hn::LoadU(d, bias + i)), d, y + i);
  });
  *mean = m;
  *rstd = r;
}

/// dx[width] of one row; adds the row to the sums dweight[width] and dbias[width]. `dresidual` may be null.
void backward_row(const float* HWY_RESTRICT dy, const float* HWY_RESTRICT x, const float* HWY_RESTRICT weight,
                  float mean, float rstd, const float* dresidual, std::int64_t width, float* dx,
                  float* HWY_RESTRICT dweight, float* HWY_RESTRICT dbias) {
  const auto xhat_at = [=](auto d, std::int64_t i) HWY_ATTR {
    return hn::Mul(hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean)), hn::Set(d, rstd));
  };
  const auto g_at = [=](auto d, std::int64_t i)
                        HWY_ATTR { return hn::Mul(hn::LoadU(d, dy + i), hn::LoadU(d, weight + i)); };
  const auto n = static_cast<double>(width);
  const auto g_mean = static_cast<float>(sum_terms(width, g_at) / n);
  const auto gx_mean = static_cast<float>(
      sum_terms(width, [=](auto d, std::int64_t i) HWY_ATTR { return hn::Mul(g_at(d, i), xhat_at(d, i)); }) / n);
  for_each_vector(width, [=](auto d, std::int64_t i) HWY_ATTR {
    const auto xhat = xhat_at(d, i);
    const auto centred = hn::NegMulAdd(xhat, hn::Set(d, gx_mean), hn::Sub(g_at(d, i), hn::Set(d, g_mean)));
    const auto scaled = hn::Mul(centred, hn::Set(d, rstd));
    const auto row = hn::LoadU(d, dy + i);
    hn::StoreU(hn::MulAdd(row, xhat, hn::LoadU(d, dweight + i)), d, dweight + i);
    hn::StoreU(hn::Add(row, hn::LoadU(d, dbias + i)), d, dbias + i);
    hn::StoreU(dresidual ? hn::Add(scaled, hn::LoadU(d, dresidual + i)) : scaled, d, dx + i);
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
HWY_EXPORT(normalize_row);
HWY_EXPORT(backward_row);
HWY_EXPORT(add_rows);

// Elements below which a second worker is not worth waking.
constexpr std::int64_t kSerialElements = 8192;

class NormPlan : public Plan {
 public:
  explicit NormPlan(const Problem& problem)
      : rows_(problem.dim("rows")),
        width_(problem.dim("width")),
        eps_(problem.constant("eps")),
        formats_(problem.formats) {}

  std::string implementation() const override { return std::string("mixroof ") + HWY_DYNAMIC_DISPATCH(target_name)(); }

 protected:
  /// Row `row` of a worker's scratch of `rows_per_worker` rows.
  float* scratch(const Launch& launch, std::int64_t rows_per_worker, int worker, std::int64_t row) const {
    return static_cast<float*>(launch.workspace) + (worker * rows_per_worker + row) * norm_detail::row_stride(width_);
  }
  const float* load(const Launch& launch, std::size_t operand, std::int64_t row, float* buffer) const {
    return load_row(formats_[operand], launch.operands[operand], row * width_, width_, buffer);
  }
  std::int64_t serial_rows() const { return kSerialElements / width_; }

  std::int64_t rows_, width_;
  double eps_;
  std::vector<Format> formats_;
};

class ForwardPlan final : public NormPlan {
 public:
  using NormPlan::NormPlan;

  void run(const Launch& launch) const override {
    parallel_ranges(
        rows_, 1, [&](int worker, std::int64_t begin, std::int64_t end) { run_rows(launch, worker, begin, end); },
        serial_rows());
  }

 private:
  void run_rows(const Launch& launch, int worker, std::int64_t begin, std::int64_t end) const {
    const auto row_of = [&](std::int64_t row) { return scratch(launch, norm_detail::kForwardRows, worker, row); };
    const float* weight = load(launch, 1, 0, row_of(0));
    const float* bias = load(launch, 2, 0, row_of(1));
    auto* mean = static_cast<float*>(launch.operands[4]);
    auto* rstd = static_cast<float*>(launch.operands[5]);
    for (std::int64_t row = begin; row < end; ++row) {
      const float* x = load(launch, 0, row, row_of(2));
      float* y = row_for_store(formats_[3], launch.operands[3], row * width_, row_of(3));
      HWY_DYNAMIC_DISPATCH(normalize_row)(x, weight, bias, eps_, width_, y, mean + row, rstd + row);
      store_row(formats_[3], y, width_, launch.operands[3], row * width_);
    }
  }
};

class BackwardPlan final : public NormPlan {
 public:
  explicit BackwardPlan(const Problem& problem)
      : NormPlan(problem),
        accumulate_(problem.accumulate),
        has_residual_(problem.dim("residual") != 0),
        dx_(has_residual_ ? 6 : 5) {}

  void run(const Launch& launch) const override {
    // Every worker's sums start at zero, also of workers that get no rows, so that the reduction reads all of them.
    const int workers = worker_count();
    for (int worker = 0; worker < workers; ++worker)
      for (const std::int64_t row : {kDweightRow, kDbiasRow})
        std::memset(row_of(launch, worker, row), 0, static_cast<std::size_t>(width_) * sizeof(float));
    parallel_ranges(
        rows_, 1, [&](int worker, std::int64_t begin, std::int64_t end) { run_rows(launch, worker, begin, end); },
        serial_rows());
    reduce(launch, workers, kDweightRow, dx_ + 1);
    reduce(launch, workers, kDbiasRow, dx_ + 2);
  }

 private:
  static constexpr std::int64_t kDweightRow = 0, kDbiasRow = 1;

  float* row_of(const Launch& launch, int worker, std::int64_t row) const {
    return scratch(launch, norm_detail::kBackwardRows, worker, row);
  }

  void run_rows(const Launch& launch, int worker, std::int64_t begin, std::int64_t end) const {
    const auto buffer = [&](std::int64_t row) { return row_of(launch, worker, row); };
    const float* weight = load(launch, 2, 0, buffer(2));
    const auto* mean = static_cast<const float*>(launch.operands[3]);
    const auto* rstd = static_cast<const float*>(launch.operands[4]);
    for (std::int64_t row = begin; row < end; ++row) {
      const float* dy = load(launch, 0, row, buffer(3));
      const float* x = load(launch, 1, row, buffer(4));
      const float* dresidual = has_residual_ ? load(launch, 5, row, buffer(5)) : nullptr;
      float* dx = row_for_store(formats_[dx_], launch.operands[dx_], row * width_, buffer(6));
      HWY_DYNAMIC_DISPATCH(backward_row)
      (dy, x, weight, mean[row], rstd[row], dresidual, width_, dx, buffer(kDweightRow), buffer(kDbiasRow));
      store_row(formats_[dx_], dx, width_, launch.operands[dx_], row * width_);
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

  bool accumulate_, has_residual_;
  std::size_t dx_;  // operand number
};

std::unique_ptr<Plan> prepare(const Problem& problem, const PrepareContext&) {
  if (problem.variant == "backward") return std::make_unique<BackwardPlan>(problem);
  return std::make_unique<ForwardPlan>(problem);
}

constexpr Implementation kImplementations[] = {{"norm", "cpu", "mixroof", supports_all, prepare}};

}  // namespace

std::span<const Implementation> norm_cpu() { return kImplementations; }

}  // namespace mixroof
#endif
