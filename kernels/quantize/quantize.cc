// Cost, reference and error limit of per-tensor FP8 quantization; kernels/quantize/quantize.h is the contract.
#include "kernels/quantize/quantize.h"

#include <fmt/format.h>

#include "kernels/case_dim.h"
#include "kernels/control_operand.h"
#include "kernels/quantize/findings.h"
#include "kernels/quantize/layout.h"

namespace mixroof {
namespace {

/// What the counts of checks start with: not zero, so that a kernel that overwrites them shows.
constexpr Fill kCountsFill{.kind = Fill::Kind::constant, .offset = 7};

Operand counts_operand(std::string name) {
  return {.name = std::move(name),
          .access = Access::read_write,
          .format = Format::fp64,
          .extent = {2},
          .fill = kCountsFill};
}

class QuantizeKernel : public Kernel {
 public:
  std::string_view name() const override { return "quantize"; }
  std::string_view summary() const override {
    return "FP8 codes of a tensor, with a known scale and the amax for the next one, or with a scale of its own values";
  }
  CostCategory category() const override { return CostCategory::quantize; }

  std::vector<Operand> operands(const Problem& p) const override {
    const QuantizeLayout at(p);
    // A scale with which about one normal value in five thousand saturates.
    const double scale = facts(p.formats[at.codes]).max_finite / 3.7;
    std::vector<Operand> operands = {
        {.name = "x", .format = p.formats[at.x], .extent = {p.dim("count")}},
        {.name = "scale",
         .access = at.current ? Access::read_write : Access::read,
         .extent = {1},
         .fill = {.kind = Fill::Kind::constant, .offset = scale}},
        {.name = "codes", .access = Access::write, .format = p.formats[at.codes], .extent = {p.dim("count")}}};
    if (!at.current)
      operands.push_back({.name = "amax",
                          .access = p.accumulate ? Access::read_write : Access::write,
                          .extent = {1},
                          .fill = {.kind = Fill::Kind::constant, .offset = 2.5}});
    operands.push_back(counts_operand("counts"));
    if (at.current) operands.push_back(counts_operand("scale_counts"));
    operands.push_back(control_operand());
    return operands;
  }

  /// One FLOP an element, the multiplication by the scale in fp32; comparisons and conversions count as none.
  Cost cost(const Problem& p) const override {
    Cost cost = compulsory_bytes(p);
    cost.add_flops(Format::fp32, p.dim("count"));
    return cost;
  }

  /// The product is rounded to fp32 before it is encoded, as the contract says: the codes' values come out exact.
  void reference(const Problem& p, std::span<const RefOperand> operands) const override {
    const QuantizeLayout at(p);
    const RefOperand& x = operands[at.x];
    double amax = p.accumulate ? operands[at.amax].data[0] : 0.0;
    for (std::int64_t i = 0; i < x.count; ++i) amax = larger_magnitude(amax, x.data[i]);
    double& scale = operands[at.scale].data[0];
    if (at.current) {
      const ScaleChoice choice =
          scale_of_amax(static_cast<float>(amax), facts(p.formats[at.codes]).max_finite, static_cast<float>(scale));
      scale = choice.scale;
      operands[at.scale_counts()].data[0] += choice.kept;
      operands[at.scale_counts()].data[1] += choice.clamped;
    } else {
      operands[at.amax].data[0] = amax;
    }
    const RefFindings findings{at.current ? ScaleOrigin::own : ScaleOrigin::earlier, operands[at.counts].data,
                               operands[at.control].data};
    for (std::int64_t i = 0; i < x.count; ++i)
      operands[at.codes].data[i] = findings.code(x.data[i], static_cast<float>(scale), p.formats[at.codes]);
  }

  /// Nothing may differ: the roundings of the arithmetic are part of the contract.
  double limit(const Problem&, std::size_t, double, double) const override { return 0; }

  std::vector<Case> cases() const override {
    std::vector<Case> cases;
    for (const std::string_view codes : {"fp8_e4m3", "fp8_e5m2"})
      for (const std::int64_t count : {0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, 100003}) {
        for (const std::int64_t accumulate : {0, 1})
          cases.push_back({std::string(codes), {{"count", count}, {"accumulate", accumulate}}});
        cases.push_back({std::string(codes), {{"count", count}, {"current", 1}}});
      }
    return cases;
  }

  /// The variant names the codes' format.
  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    if (!is_per_tensor(recipe.fp8)) return std::nullopt;
    const std::optional<Format> codes = parse_format(c.variant);
    if (!codes) throw UsageError(fmt::format("quantize: unknown format '{}'; give fp8_e4m3 or fp8_e5m2", c.variant));
    const std::int64_t count = case_dim(name(), c, "count");
    const bool current = case_dim(name(), c, "current", 0) != 0;
    if (current != (recipe.fp8 == Fp8Scaling::current)) return std::nullopt;
    if (current) return quantize_current_problem(count, recipe.between, *codes);
    return quantize_problem(count, recipe.between, *codes, case_dim(name(), c, "accumulate", 0) != 0);
  }
};

Problem checked_problem(std::int64_t count, Format x, Format codes) {
  if (!is_fp8(codes))
    throw UsageError(fmt::format("quantize: codes cannot be {}; give fp8_e4m3 or fp8_e5m2", name(codes)));
  return {.kernel = "quantize",
          .variant = std::string(name(codes)),
          .shape = {{"count", at_least("quantize", "count", count, 0)}},
          .formats = {x, Format::fp32, codes},
          .constants = {}};
}

}  // namespace

Problem quantize_problem(std::int64_t count, Format x, Format codes, bool accumulate) {
  Problem problem = checked_problem(count, x, codes);
  problem.shape.emplace_back("accumulate", accumulate);
  problem.accumulate = accumulate;
  problem.formats.insert(problem.formats.end(), {Format::fp32, Format::fp64, Format::fp64});
  return problem;
}

Problem quantize_current_problem(std::int64_t count, Format x, Format codes) {
  Problem problem = checked_problem(count, x, codes);
  problem.shape.emplace_back("current", 1);
  problem.formats.insert(problem.formats.end(), {Format::fp64, Format::fp64, Format::fp64});
  return problem;
}

const Kernel& quantize_kernel() {
  static const QuantizeKernel kernel;
  return kernel;
}

}  // namespace mixroof
