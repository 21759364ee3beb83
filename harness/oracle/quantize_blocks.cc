#include "harness/oracle/quantize_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/execute/kernel_run.h"
#include "harness/numeric/codec.h"
#include "harness/oracle/check.h"
#include "harness/oracle/comparison.h"
#include "kernels/control.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/scale_rules.h"
#include "kernels/quantize_blocks/quantize_blocks.h"

namespace mixroof {
namespace {

using Values = std::vector<double>;

constexpr Format kFormats[] = {Format::fp8_e4m3, Format::fp8_e5m2};

BlockShape block_shape(const OracleEntry& entry) {
  return {.rows = entry.whole("rows"), .width = entry.whole("columns"), .block = entry.whole("block"), .along_rows = true};
}

struct Blocks {
  Values codes, scale_inv;
};

Blocks quantize(Backend& backend, const BlockShape& shape, Format format, Format scale_format, const Values& x) {
  const auto after =
      run_on(backend, quantize_blocks_kernel(), quantize_blocks_problem(shape, Format::fp32, format, scale_format),
             {x, {}, {}, {0, 0}, {0, 0}, Values(kControlSlots, 0.0)});
  return {after[1], after[2]};
}

/// The same by OCP's own rounding of scales, which no recipe takes: block by block, the rule and then the kernel with a known
/// scale.
Blocks quantize_ocp_floor(Backend& backend, const BlockShape& shape, Format format, const Values& x) {
  Blocks result;
  for (std::int64_t row = 0; row < shape.rows; ++row)
    for (std::int64_t begin = 0; begin < shape.width; begin += shape.block) {
      const std::int64_t count = std::min(shape.block, shape.width - begin);
      const auto first = x.begin() + row * shape.width + begin;
      const Values block(first, first + count);
      double amax = 0;
      for (const double value : block) amax = std::max(amax, std::fabs(value));
      const ScaleChoice choice = mx_scale_of_amax(static_cast<float>(amax), facts(format).max_finite, MxRounding::floor);
      const auto after = run_on(backend, quantize_kernel(), quantize_problem(count, Format::fp32, format, false),
                                {block, {choice.scale}, {}, {0}, {0, 0}, Values(kControlSlots, 0.0)});
      result.codes.insert(result.codes.end(), after[2].begin(), after[2].end());
      result.scale_inv.push_back(choice.scale_inv);
    }
  return result;
}

/// fp32(code · scale_inv) of every value.
Values dequantized(const Blocks& blocks, const BlockShape& shape) {
  const auto per_row = static_cast<std::size_t>((shape.width + shape.block - 1) / shape.block);
  const auto width = static_cast<std::size_t>(shape.width), block = static_cast<std::size_t>(shape.block);
  Values values;
  for (std::size_t i = 0; i < blocks.codes.size(); ++i) {
    const double scale = blocks.scale_inv[i / width * per_row + i % width / block];
    values.push_back(static_cast<float>(blocks.codes[i]) * static_cast<float>(scale));
  }
  return values;
}

}  // namespace

std::vector<double> decoded_codes(Format format, const std::vector<double>& codes) {
  Values values;
  for (const double code : codes) {
    const auto byte = static_cast<std::uint8_t>(code);
    float value = 0;
    decode(format, &byte, &value, 1);
    values.push_back(value);
  }
  return values;
}

void check_block_scales(OracleSession& session, const OracleFile& file, const OracleEntry& entry) {
  const BlockShape shape = block_shape(entry);
  const Values x = file.values("block128/x");
  for (const Format format : kFormats) {
    const std::string folder = fmt::format("block128/{}/exact/", name(format));
    if (!file.has_array(folder + "codes")) continue;
    const Blocks got = quantize(session.device(), shape, format, Format::fp32, x);
    Comparison c;
    c.near(got.codes, decoded_codes(format, file.values(folder + "codes")), {}, folder + "codes");
    c.near(got.scale_inv, file.values(folder + "scale_inv"), {}, folder + "scale_inv");
    session.add(c.row(kQuantizeGroup, fmt::format("block128 {}", name(format))));
  }
}

void check_microscaling(OracleSession& session, const OracleFile& file, const OracleEntry& entry) {
  const BlockShape shape = block_shape(entry);
  const Values x = file.values("mxfp8/x");
  for (const Format format : kFormats)
    for (const bool rounds_up : {true, false}) {
      const std::string rule = rounds_up ? "round_up" : "ocp_floor";
      const std::string folder = fmt::format("mxfp8/{}/{}/", name(format), rule);
      if (!file.has_array(folder + "codes")) continue;
      const Blocks got = rounds_up ? quantize(session.device(), shape, format, Format::e8m0, x)
                                   : quantize_ocp_floor(session.device(), shape, format, x);
      Comparison c;
      c.near(got.codes, decoded_codes(format, file.values(folder + "codes")), {}, folder + "codes");
      c.near(got.scale_inv, decoded_codes(Format::e8m0, file.values(folder + "e8m0")), {}, folder + "e8m0");
      if (file.has_array(folder + "dequantized"))
        c.near(dequantized(got, shape), file.values(folder + "dequantized"), {}, folder + "dequantized");
      session.add(c.row(kQuantizeGroup, fmt::format("mxfp8 {} {}", name(format), rule)));
    }
}

}  // namespace mixroof
