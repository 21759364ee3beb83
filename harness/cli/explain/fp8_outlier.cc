#include "harness/cli/explain/fp8_outlier.h"

#include <cmath>

#include "harness/execute/kernel_check.h"
#include "kernels/control.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/scale_rules.h"
#include "kernels/quantize_blocks/quantize_blocks.h"

namespace mixroof::cli {
namespace {

constexpr std::int64_t kRows = 8, kWidth = 256;
constexpr std::size_t kOutlier = 3 * kWidth + 70;
constexpr Format kCodes = Format::fp8_e4m3;

double error_beside_the_outlier(const Values& x, const Values& got) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i == kOutlier) continue;
    difference += (got[i] - x[i]) * (got[i] - x[i]);
    size += x[i] * x[i];
  }
  return std::sqrt(difference / size);
}

SharedScale per_tensor(Workbench& bench, const Values& x) {
  const auto after = bench.run(quantize_current_problem(kRows * kWidth, Format::fp32, kCodes),
                               {x, {1}, {}, {0, 0}, {0, 0}, Values(kControlSlots)});
  Values got = after[2];
  for (double& value : got) value /= after[1][0];
  return {"the tensor", 1, error_beside_the_outlier(x, got), after[3][1]};
}

SharedScale by_blocks(Workbench& bench, const Values& x, const char* text, Fp8Scaling scaling) {
  const BlockShape shape{.rows = kRows, .width = kWidth, .block = scale_block(scaling, kWidth), .along_rows = true};
  const auto after = bench.run(quantize_blocks_problem(shape, Format::fp32, kCodes, scale_format(scaling)),
                               {x, {}, {}, {0, 0}, {0, 0}, Values(kControlSlots)});
  Values got = after[1];
  for (std::size_t i = 0; i < got.size(); ++i) got[i] *= after[2][i / static_cast<std::size_t>(shape.block)];
  return {text, static_cast<std::int64_t>(after[2].size()), error_beside_the_outlier(x, got), after[3][1]};
}

}  // namespace

std::vector<SharedScale> share_scales(Workbench& bench, double outlier) {
  Values x =
      make_inputs(quantize_kernel(), quantize_problem(kRows * kWidth, Format::fp32, kCodes, false), /*seed=*/1)[0];
  x[kOutlier] = outlier;
  return {per_tensor(bench, x), by_blocks(bench, x, "a row of 256", Fp8Scaling::channel),
          by_blocks(bench, x, "128 values", Fp8Scaling::block128),
          by_blocks(bench, x, "32 values, E8M0 (MXFP8)", Fp8Scaling::mx32)};
}

}  // namespace mixroof::cli
