// Ways to run a matrix product on the CPU: the project's own for every format, and libraries where they are present and
// have proved themselves (matmul_library.h). To add one, append its row to matmul_cpu().
#include <fmt/format.h>

#include <algorithm>

#include "kernels/matmul/matmul.h"
#include "kernels/matmul/matmul_gemm.h"
#include "kernels/matmul/matmul_layout.h"
#include "kernels/matmul/matmul_library.h"

namespace mixroof {
namespace {

bool is_storable(Format format) { return format == Format::fp32 || is_16_bit(format); }

Support supports(const Problem& problem, const DeviceFacts&) {
  const Format a = problem.formats.at(0), b = problem.formats.at(1), c = problem.formats.back();
  if (a == Format::tf32 || b == Format::tf32)
    return Support::no("tf32 is arithmetic of GPUs only (use --recipes fp32, or --device cuda)");
  if (is_fp8(a) != is_fp8(b))
    return Support::no(fmt::format("{} x {}: FP8 on one side only has no scales", name(a), name(b)));
  for (const Format format : {a, b})
    if (!is_storable(format) && !is_fp8(format))
      return Support::no(fmt::format("inputs in {} are not a product of training", name(format)));
  if (!is_storable(c)) return Support::no(fmt::format("outputs are fp32, fp16 or bf16, not {}", name(c)));
  return {};
}

class MixroofPlan : public Plan {
 public:
  MixroofPlan(const Problem& problem, int threads)
      : layout_(matmul_layout(problem)), blocking_(gemm_blocking(layout_.m, layout_.n, layout_.k, threads)) {
    const bool a_lines = layout_.variant == MatmulVariant::wgrad, b_lines = layout_.variant != MatmulVariant::forward;
    task_ = {.m = layout_.m,
             .n = layout_.n,
             .k = layout_.k,
             .a = {nullptr, problem.formats[0], a_lines ? layout_.m : layout_.k, !a_lines},
             .b = {nullptr, problem.formats[1], b_lines ? layout_.n : layout_.k, !b_lines},
             .c_format = problem.formats[layout_.c],
             .accumulate = problem.accumulate};
    if (layout_.block > 0) {
      set_block_scales(task_.a, problem.formats[layout_.scale_a], layout_.m);
      set_block_scales(task_.b, problem.formats[layout_.scale_b], layout_.n);
    }
    if (layout_.bias >= 0) task_.bias_format = problem.formats[static_cast<std::size_t>(layout_.bias)];
  }

  void run(const Launch& launch) const override {
    GemmTask task = task_;
    task.a.data = launch.operands[0];
    task.b.data = launch.operands[1];
    if (layout_.bias >= 0) task.bias = launch.operands[static_cast<std::size_t>(layout_.bias)];
    if (layout_.block > 0) {
      task.a.scale_inv = launch.operands[layout_.scale_a];
      task.b.scale_inv = launch.operands[layout_.scale_b];
    } else if (layout_.has_scales()) {
      task.scale_a = static_cast<const float*>(launch.operands[layout_.scale_a]);
      task.scale_b = static_cast<const float*>(launch.operands[layout_.scale_b]);
    }
    task.c = launch.operands[layout_.c];
    gemm(task, blocking_, launch.workspace);
  }
  std::string implementation() const override { return "mixroof " + gemm_path(); }
  // Narrow inputs are widened while they are packed.
  bool emulated() const override { return task_.a.format != Format::fp32; }

 private:
  void set_block_scales(GemmMatrix& x, Format format, std::int64_t lines) const {
    x.block = layout_.block;
    x.scale_format = format;
    x.scale_stride = x.is_k_major ? layout_.blocks() : lines;
  }

  MatmulLayout layout_;
  GemmBlocking blocking_;
  GemmTask task_;
};

std::unique_ptr<Plan> prepare(const Problem& problem, const PrepareContext& context) {
  return std::make_unique<MixroofPlan>(problem, context.facts.units);
}

}  // namespace

std::span<const Implementation> matmul_cpu() {
  static const std::vector<Implementation> table = [] {
    std::vector<Implementation> all = {{"matmul", "cpu", "mixroof", supports, prepare}};
    for (const std::span<const Implementation> library : {matmul_openblas(), matmul_onednn()})
      all.insert(all.end(), library.begin(), library.end());
    return all;
  }();
  return table;
}

}  // namespace mixroof
