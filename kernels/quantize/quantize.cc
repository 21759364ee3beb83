// Cost, reference and error limit of per-tensor FP8 quantization; kernels/quantize/quantize.h is the contract.
#include "kernels/quantize/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/numeric/codec.h"
#include "kernels/case_dim.h"
#include "kernels/control.h"
#include "kernels/control_operand.h"

namespace mixroof {
namespace {

constexpr std::size_t kX = 0, kScale = 1, kCodes = 2, kAmax = 3, kCounts = 4, kControl = 5;

/// The larger magnitude; a NaN wins over everything, so that it cannot hide behind a later value.
double larger_magnitude(double amax, double value) {
  if (std::isnan(amax) || std::isnan(value)) return std::numeric_limits<double>::quiet_NaN();
  return std::max(amax, std::fabs(value));
}

class QuantizeKernel : public Kernel {
 public:
  std::string_view name() const override { return "quantize"; }
  std::string_view summary() const override {
    return "FP8 codes of a tensor with a known scale, and the amax for the next one";
  }
  CostCategory category() const override { return CostCategory::quantize; }

  std::vector<Operand> operands(const Problem& p) const override {
    // A scale with which about one normal value in five thousand saturates.
    const double scale = facts(p.formats[kCodes]).max_finite / 3.7;
    const Access amax_access = p.accumulate ? Access::read_write : Access::write;
    return {
        {.name = "x", .format = p.formats[kX], .extent = {p.dim("count")}},
        {.name = "scale", .extent = {1}, .fill = {.kind = Fill::Kind::constant, .offset = scale}},
        {.name = "codes", .access = Access::write, .format = p.formats[kCodes], .extent = {p.dim("count")}},
        {.name = "amax", .access = amax_access, .extent = {1}, .fill = {.kind = Fill::Kind::constant, .offset = 2.5}},
        {.name = "counts",
         .access = Access::read_write,
         .format = Format::fp64,
         .extent = {2},
         .fill = {.kind = Fill::Kind::constant, .offset = 7}},
        control_operand()};
  }

  /// One FLOP an element, the multiplication by the scale in fp32; comparisons and conversions count as none.
  Cost cost(const Problem& p) const override {
    Cost cost = compulsory_bytes(p);
    cost.add_flops(Format::fp32, p.dim("count"));
    return cost;
  }

  /// The product is rounded to fp32 before it is encoded, as the contract says: the codes' values come out exact.
  void reference(const Problem& p, std::span<const RefOperand> operands) const override {
    const RefOperand& x = operands[kX];
    const double scale = operands[kScale].data[0];
    const double max_finite = facts(p.formats[kCodes]).max_finite;
    double amax = p.accumulate ? operands[kAmax].data[0] : 0.0;
    for (std::int64_t i = 0; i < x.count; ++i) {
      const double scaled = static_cast<float>(x.data[i] * scale);
      const double code = round_to(p.formats[kCodes], scaled);
      operands[kCodes].data[i] = code;
      amax = larger_magnitude(amax, x.data[i]);
      if (std::fabs(scaled) > max_finite) operands[kCounts].data[0] += 1;
      if (code == 0 && x.data[i] != 0) operands[kCounts].data[1] += 1;
      if (!std::isfinite(x.data[i])) slot(operands[kControl].data, Slot::found_inf) = 1;
    }
    operands[kAmax].data[0] = amax;
  }

  /// Nothing may differ: the one rounding of the arithmetic, fp32(x · scale), is part of the contract.
  double limit(const Problem&, std::size_t, double, double) const override { return 0; }

  std::vector<Case> cases() const override {
    std::vector<Case> cases;
    for (const std::string_view codes : {"fp8_e4m3", "fp8_e5m2"})
      for (const std::int64_t accumulate : {0, 1})
        for (const std::int64_t count : {0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, 100003})
          cases.push_back({std::string(codes), {{"count", count}, {"accumulate", accumulate}}});
    return cases;
  }

  /// The variant names the codes' format.
  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    if (!recipe.uses_fp8()) return std::nullopt;
    const std::optional<Format> codes = parse_format(c.variant);
    if (!codes) throw UsageError(fmt::format("quantize: unknown format '{}'; give fp8_e4m3 or fp8_e5m2", c.variant));
    return quantize_problem(case_dim(name(), c, "count"), recipe.between, *codes,
                            case_dim(name(), c, "accumulate", 0) != 0);
  }
};

}  // namespace

Problem quantize_problem(std::int64_t count, Format x, Format codes, bool accumulate) {
  if (!is_fp8(codes))
    throw UsageError(fmt::format("quantize: codes cannot be {}; give fp8_e4m3 or fp8_e5m2", name(codes)));
  return {.kernel = "quantize",
          .variant = std::string(name(codes)),
          .shape = {{"count", at_least("quantize", "count", count, 0)}, {"accumulate", accumulate}},
          .formats = {x, Format::fp32, codes, Format::fp32, Format::fp64, Format::fp64},
          .accumulate = accumulate,
          .constants = {}};
}

const Kernel& quantize_kernel() {
  static const QuantizeKernel kernel;
  return kernel;
}

}  // namespace mixroof
