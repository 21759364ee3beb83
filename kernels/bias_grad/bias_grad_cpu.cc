// Column sums on the CPU: workers share the columns. Each column is summed in fp32 over chunks of rows and the chunks
// are summed in fp32, an order that depends on the shape alone.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/bias_grad/bias_grad_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/add_rows-inl.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/backend/cpu/parallel.h"
#include "kernels/bias_grad/bias_grad.h"
#include "kernels/implementation.h"
#include "kernels/row_buffer.h"

#ifndef MIXROOF_KERNELS_BIAS_GRAD_SHARED
#define MIXROOF_KERNELS_BIAS_GRAD_SHARED
namespace mixroof::bias_grad_detail {

constexpr std::int64_t kTileColumns = 256, kChunkRows = 64;

struct Task {
  std::int64_t rows, width;
  Format dy_format, dbias_format;
  const void* dy;
  void* dbias;
  bool accumulate;
};

}  // namespace mixroof::bias_grad_detail
#endif

HWY_BEFORE_NAMESPACE();
namespace mixroof {
namespace HWY_NAMESPACE {
namespace {

using bias_grad_detail::kChunkRows;
using bias_grad_detail::kTileColumns;
using bias_grad_detail::Task;

void sum_columns(const Task& task, std::int64_t first, std::int64_t count) {
  alignas(64) float total[kTileColumns] = {}, chunk[kTileColumns], decoded[kTileColumns];
  for (std::int64_t begin = 0; begin < task.rows; begin += kChunkRows) {
    const std::int64_t end = HWY_MIN(begin + kChunkRows, task.rows);
    for (float& value : chunk) value = 0;
    for (std::int64_t row = begin; row < end; ++row)
      add_rows(chunk, load_row(task.dy_format, task.dy, row * task.width + first, count, decoded), chunk, count);
    add_rows(total, chunk, total, count);
  }
  if (task.accumulate) add_rows(total, load_row(task.dbias_format, task.dbias, first, count, decoded), total, count);
  encode(task.dbias_format, total, element_address(task.dbias_format, task.dbias, first), count);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mixroof
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mixroof {
namespace {

using namespace bias_grad_detail;

HWY_EXPORT(sum_columns);

class BiasGradPlan : public Plan {
 public:
  explicit BiasGradPlan(const Problem& problem)
      : task_{.rows = problem.dim("rows"),
              .width = problem.dim("width"),
              .dy_format = problem.formats.at(0),
              .dbias_format = problem.formats.at(1),
              .dy = nullptr,
              .dbias = nullptr,
              .accumulate = problem.accumulate} {}

  void run(const Launch& launch) const override {
    Task task = task_;
    task.dy = launch.operands[0];
    task.dbias = launch.operands[1];
    constexpr std::int64_t kGrain = 32;  // columns: two cache lines of fp32
    const std::int64_t serial_below = 16384 / std::max<std::int64_t>(task.rows, 1);
    parallel_ranges(
        task.width, kGrain,
        [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t first = begin; first < end; first += kTileColumns)
            HWY_DYNAMIC_DISPATCH(sum_columns)(task, first, std::min(kTileColumns, end - first));
        },
        serial_below);
  }
  std::string implementation() const override { return "mixroof"; }

 private:
  Task task_;
};

Support supports(const Problem& problem, const DeviceFacts&) {
  for (const Format format : problem.formats)
    if (format != Format::fp32 && !is_16_bit(format))
      return Support::no(fmt::format("bias gradients are fp32, fp16 or bf16, not {}", name(format)));
  return {};
}

constexpr Implementation kTable[] = {{"bias_grad", "cpu", "mixroof", supports, prepare_plan<BiasGradPlan>}};

}  // namespace

std::span<const Implementation> bias_grad_cpu() { return kTable; }

}  // namespace mixroof
#endif
