#include "kernels/quantize_blocks/quantize_blocks.h"

#include <fmt/format.h>

#include "harness/numeric/checked.h"
#include "kernels/case_dim.h"
#include "kernels/control_operand.h"
#include "kernels/quantize/findings.h"
#include "kernels/quantize_blocks/layout.h"

namespace mixroof {
namespace {

class QuantizeBlocksKernel final : public Kernel {
 public:
  std::string_view name() const override { return "quantize_blocks"; }
  std::string_view summary() const override {
    return "FP8 codes with a scale per row, column or block, from its own values";
  }
  CostCategory category() const override { return CostCategory::quantize; }

  std::vector<Operand> operands(const Problem& p) const override {
    const BlockLayout s(p);
    const Fill counts{.kind = Fill::Kind::constant, .offset = 7};
    const std::vector<std::int64_t> scales =
        s.along_rows ? std::vector{s.rows, s.blocks()} : std::vector{s.blocks(), s.width};
    return {
        {.name = "x", .format = s.x_format, .extent = {s.rows, s.width}},
        {.name = "codes", .access = Access::write, .format = s.code_format, .extent = {s.rows, s.width}},
        {.name = "scale_inv", .access = Access::write, .format = s.scale_format, .extent = scales},
        {.name = "counts", .access = Access::read_write, .format = Format::fp64, .extent = {2}, .fill = counts},
        {.name = "scale_counts", .access = Access::read_write, .format = Format::fp64, .extent = {2}, .fill = counts},
        control_operand()};
  }

  Cost cost(const Problem& p) const override {
    const BlockLayout s(p);
    Cost cost = compulsory_bytes(p);
    cost.add_flops(Format::fp32, checked_product({s.rows, s.width}));
    return cost;
  }

  void reference(const Problem& p, std::span<const RefOperand> o) const override {
    const BlockLayout s(p);
    const RefFindings findings{ScaleOrigin::own, o[BlockLayout::counts].data, o[BlockLayout::control].data};
    const std::int64_t lines = s.along_rows ? s.rows : s.width, length = s.along_rows ? s.width : s.rows;
    const auto element = [&](std::int64_t line, std::int64_t i) {
      return s.along_rows ? line * s.width + i : i * s.width + line;
    };
    for (std::int64_t line = 0; line < lines; ++line)
      for (std::int64_t b = 0; b < s.blocks(); ++b) {
        const std::int64_t begin = b * s.block, end = std::min(begin + s.block, length);
        double amax = 0;
        for (std::int64_t i = begin; i < end; ++i)
          amax = larger_magnitude(amax, o[BlockLayout::x].data[element(line, i)]);
        const ScaleChoice choice = s.choose(static_cast<float>(amax));
        o[BlockLayout::scale_inv].data[s.along_rows ? line * s.blocks() + b : b * s.width + line] = choice.scale_inv;
        o[BlockLayout::scale_counts].data[0] += choice.kept;
        o[BlockLayout::scale_counts].data[1] += choice.clamped;
        for (std::int64_t i = begin; i < end; ++i)
          o[BlockLayout::codes].data[element(line, i)] =
              findings.code(o[BlockLayout::x].data[element(line, i)], choice.scale, s.code_format);
      }
  }

  /// Nothing may differ: the roundings of the arithmetic are part of the contract.
  double limit(const Problem&, std::size_t, double, double) const override { return 0; }

  /// A block of zeros, one of tiny values whose scale is clamped, and one with an infinity among the normal ones.
  void complete_inputs(const Problem& p, std::span<std::vector<double>> inputs) const override {
    const BlockLayout s(p);
    std::vector<double>& x = inputs[BlockLayout::x];
    for (std::int64_t row = 0; row < s.rows; ++row)
      for (std::int64_t column = 0; column < s.width; ++column) {
        double& value = x[static_cast<std::size_t>(row * s.width + column)];
        const std::int64_t line = s.along_rows ? row : column;
        if (line % 11 == 5) value = 0;
        if (line % 11 == 7) value = std::copysign(facts(s.x_format).min_subnormal, value);
        if (line == 9 && row + column == 12) value = std::numeric_limits<double>::infinity();
      }
  }

  std::vector<Case> cases() const override {
    std::vector<Case> cases;
    for (const std::string_view codes : {"fp8_e4m3", "fp8_e5m2"})
      for (const std::int64_t along_rows : {1, 0})
        for (const auto& [rows, width] : {std::pair<std::int64_t, std::int64_t>{0, 16},
                                          {1, 1},
                                          {3, 0},
                                          {3, 31},
                                          {5, 32},
                                          {33, 33},
                                          {7, 129},
                                          {130, 17},
                                          {2, 1030},
                                          {300, 70},
                                          {1100, 9}})
          cases.push_back({std::string(codes), {{"rows", rows}, {"width", width}, {"along_rows", along_rows}}});
    return cases;
  }

  /// The variant names the codes' format; block and format of the scales are the recipe's.
  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    if (!recipe.uses_fp8() || is_per_tensor(recipe.fp8)) return std::nullopt;
    const std::optional<Format> codes = parse_format(c.variant);
    if (!codes)
      throw UsageError(fmt::format("quantize_blocks: unknown format '{}'; give fp8_e4m3 or fp8_e5m2", c.variant));
    BlockShape shape{.rows = case_dim(name(), c, "rows"),
                     .width = case_dim(name(), c, "width"),
                     .along_rows = case_dim(name(), c, "along_rows", 1) != 0};
    const std::int64_t block = scale_block(recipe.fp8, shape.along_rows ? shape.width : shape.rows);
    shape.block = case_dim(name(), c, "block", block);
    return quantize_blocks_problem(shape, recipe.between, *codes, scale_format(recipe.fp8));
  }
};

}  // namespace

Problem quantize_blocks_problem(const BlockShape& s, Format x, Format codes, Format scale_inv) {
  if (!is_fp8(codes))
    throw UsageError(fmt::format("quantize_blocks: codes cannot be {}; give fp8_e4m3 or fp8_e5m2", name(codes)));
  if (scale_inv != Format::fp32 && scale_inv != Format::e8m0)
    throw UsageError(fmt::format("quantize_blocks: scales cannot be {}; give fp32 or e8m0", name(scale_inv)));
  return {.kernel = "quantize_blocks",
          .variant = std::string(name(codes)),
          .shape = {{"rows", at_least("quantize_blocks", "rows", s.rows, 0)},
                    {"width", at_least("quantize_blocks", "width", s.width, 0)},
                    {"block", at_least("quantize_blocks", "block", s.block, 1)},
                    {"along_rows", s.along_rows}},
          .formats = {x, codes, scale_inv, Format::fp64, Format::fp64, Format::fp64},
          .constants = {}};
}

const Kernel& quantize_blocks_kernel() {
  static const QuantizeBlocksKernel kernel;
  return kernel;
}

}  // namespace mixroof
