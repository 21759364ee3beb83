// Cost, reference and error limit of delayed FP8 scaling; kernels/fp8_scale/fp8_scale.h is the contract.
#include "kernels/fp8_scale/fp8_scale.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/case_dim.h"
#include "kernels/quantize/scale_rules.h"

namespace mixroof {
namespace {

constexpr std::size_t kAmax = 0, kHistory = 1, kLimits = 2, kScale = 3, kCounts = 4;

class Fp8ScaleKernel : public Kernel {
 public:
  std::string_view name() const override { return "fp8_scale"; }
  std::string_view summary() const override { return "delayed FP8 scales from amax histories"; }
  CostCategory category() const override { return CostCategory::scaling_check; }

  std::vector<Operand> operands(const Problem& p) const override {
    const std::int64_t tensors = p.dim("tensors");
    const Fill magnitudes{.kind = Fill::Kind::positive, .scale = 3.0, .offset = 0.01};
    return {{.name = "amax", .extent = {tensors}, .fill = magnitudes},
            {.name = "history", .access = Access::read_write, .extent = {p.dim("length"), tensors}, .fill = magnitudes},
            {.name = "limits", .extent = {tensors}, .fill = {.kind = Fill::Kind::constant, .offset = 448}},
            {.name = "scale",
             .access = Access::read_write,
             .extent = {tensors},
             .fill = {.kind = Fill::Kind::positive, .scale = 100.0, .offset = 1.0}},
            {.name = "counts",
             .access = Access::read_write,
             .format = Format::fp64,
             .extent = {2},
             .fill = {.kind = Fill::Kind::constant, .offset = 7}}};
  }

  /// Two FLOPs a tensor, the divisions by the maximum and by 2^margin, in fp32; comparisons count as none.
  Cost cost(const Problem& p) const override {
    Cost cost = compulsory_bytes(p);
    cost.add_flops(Format::fp32, 2 * p.dim("tensors"));
    return cost;
  }

  void reference(const Problem& p, std::span<const RefOperand> operands) const override {
    const std::int64_t tensors = p.dim("tensors"), length = p.dim("length");
    double* history = operands[kHistory].data;
    for (std::int64_t t = 0; t < tensors; ++t) {
      for (std::int64_t row = length - 1; row > 0; --row) history[row * tensors + t] = history[(row - 1) * tensors + t];
      history[t] = operands[kAmax].data[t];
      double maximum = 0;
      for (std::int64_t row = 0; row < length; ++row) {
        const double amax = history[row * tensors + t];
        maximum = std::isnan(amax) || std::isnan(maximum) ? std::numeric_limits<double>::quiet_NaN()
                                                          : std::max(maximum, amax);
      }
      double& scale = operands[kScale].data[t];
      const ScaleChoice next = scale_of_amax(static_cast<float>(maximum), operands[kLimits].data[t], static_cast<float>(scale),
                                             p.constant("margin"));
      scale = next.scale;
      operands[kCounts].data[0] += next.kept;
      operands[kCounts].data[1] += next.clamped;
    }
  }

  /// Nothing may differ: the two fp32 divisions are part of the contract and IEEE 754 rounds them correctly.
  double limit(const Problem&, std::size_t, double, double) const override { return 0; }

  /// Both FP8 formats side by side, and the maxima that keep or clamp a scale: zero, infinite, NaN, tiny.
  void complete_inputs(const Problem& p, std::span<std::vector<double>> inputs) const override {
    const auto tensors = static_cast<std::size_t>(p.dim("tensors")), length = static_cast<std::size_t>(p.dim("length"));
    const auto set_all = [&](std::size_t t, double amax) {
      inputs[kAmax][t] = amax;
      for (std::size_t row = 0; row < length; ++row) inputs[kHistory][row * tensors + t] = amax;
    };
    for (std::size_t t = 0; t < tensors; ++t) {
      if (t % 2 == 1) inputs[kLimits][t] = 57344;
      if (t % 7 == 2) set_all(t, 0);
      if (t % 7 == 3) inputs[kAmax][t] = std::numeric_limits<double>::infinity();
      if (t % 7 == 4) inputs[kHistory][t] = std::numeric_limits<double>::quiet_NaN();
      if (t % 7 == 5) set_all(t, 1e-40);
    }
  }

  std::vector<Case> cases() const override {
    std::vector<Case> cases;
    for (const std::int64_t length : {1, 2, 4, 16})
      for (const std::int64_t tensors : {0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, 10007})
        cases.push_back({"delayed", {{"tensors", tensors}, {"length", length}}});
    return cases;
  }

  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    if (recipe.fp8 != Fp8Scaling::delayed) return std::nullopt;
    return fp8_scale_problem(case_dim(name(), c, "tensors"), case_dim(name(), c, "length"), /*margin=*/0);
  }
};

}  // namespace

Problem fp8_scale_problem(std::int64_t tensors, std::int64_t history_length, double margin) {
  return {.kernel = "fp8_scale",
          .variant = "delayed",
          .shape = {{"tensors", at_least("fp8_scale", "tensors", tensors, 0)},
                    {"length", at_least("fp8_scale", "length", history_length, 1)}},
          .formats = {Format::fp32, Format::fp32, Format::fp32, Format::fp32, Format::fp64},
          .constants = {{"margin", margin}}};
}

const Kernel& fp8_scale_kernel() {
  static const Fp8ScaleKernel kernel;
  return kernel;
}

}  // namespace mixroof
