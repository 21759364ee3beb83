// Cost, reference and error limit of the finite check; kernels/grad_check/grad_check.h is the contract.
#include "kernels/grad_check/grad_check.h"

#include <cmath>

#include "kernels/case_dim.h"
#include "kernels/control.h"
#include "kernels/control_operand.h"

namespace mixroof {
namespace {

constexpr std::size_t kGrad = 0, kControl = 1;

class GradCheckKernel : public Kernel {
 public:
  std::string_view name() const override { return "grad_check"; }
  std::string_view summary() const override { return "finite check and squared norm of one gradient tensor"; }
  CostCategory category() const override { return CostCategory::scaling_check; }

  std::vector<Operand> operands(const Problem& p) const override {
    // Scaled by 1024, gradients are a few tens; integers up to 15 stay exact in every format.
    return {{.name = "grad",
             .format = p.formats[kGrad],
             .extent = {p.dim("count")},
             .fill = {.scale = 20.0, .exact_limit = 15}},
            control_operand()};
  }

  /// Two FLOPs an element, a square and an addition. Booked under fp32 like every element-wise op: half a FLOP per byte is
  /// bound by memory at either width, and a ceiling of its own for doubles would never show.
  Cost cost(const Problem& p) const override {
    Cost cost = compulsory_bytes(p);
    cost.add_flops(Format::fp32, 2 * p.dim("count"));
    return cost;
  }

  std::int64_t workspace_bytes(const Problem&, const Target& target) const override {
    return target.threads * static_cast<std::int64_t>(sizeof(double));  // a partial sum per worker
  }

  void reference(const Problem& p, std::span<const RefOperand> operands) const override {
    const RefOperand& grad = operands[kGrad];
    double* control = operands[kControl].data;
    double sum = p.accumulate ? slot(control, Slot::grad_square_sum) : 0.0;
    for (std::int64_t i = 0; i < grad.count; ++i) {
      sum += grad.data[i] * grad.data[i];
      if (!std::isfinite(grad.data[i])) slot(control, Slot::found_inf) = 1;
    }
    slot(control, Slot::grad_square_sum) = sum;
    // All terms are positive: the sum is its own yardstick. The other slots are exact.
    if (operands[kControl].magnitude != nullptr) slot(operands[kControl].magnitude, Slot::grad_square_sum) = sum;
  }

  /// A square of an fp32 value is exact in double (48 bits), so each of the two sides rounds once per addition: at most
  /// count · 2^-53 of the sum of magnitudes, in whatever order (Higham, Accuracy and Stability, §4.2).
  double limit(const Problem& p, std::size_t, double, double magnitude) const override {
    return 2 * static_cast<double>(p.dim("count") + 1) * facts(Format::fp64).unit_roundoff * magnitude;
  }

  std::vector<Case> cases() const override {
    std::vector<Case> cases;
    for (const std::string_view grad : {"fp32", "fp16", "bf16"})
      for (const std::int64_t accumulate : {0, 1})
        for (const std::int64_t count : {0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, 100003})
          cases.push_back({std::string(grad), {{"count", count}, {"accumulate", accumulate}}});
    return cases;
  }

  /// The variant names the gradient's format: the recipe's own, or fp32 as windows of several micro-batches keep them.
  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    const std::optional<Format> grad = parse_format(c.variant);
    if (!grad || (*grad != recipe.grads && *grad != Format::fp32)) return std::nullopt;
    return grad_check_problem(case_dim(name(), c, "count"), *grad, case_dim(name(), c, "accumulate", 0) != 0);
  }
};

}  // namespace

Problem grad_check_problem(std::int64_t count, Format grad, bool accumulate) {
  return {.kernel = "grad_check",
          .variant = std::string(name(grad)),
          .shape = {{"count", at_least("grad_check", "count", count, 0)}, {"accumulate", accumulate}},
          .formats = {grad, Format::fp64},
          .accumulate = accumulate,
          .constants = {}};
}

const Kernel& grad_check_kernel() {
  static const GradCheckKernel kernel;
  return kernel;
}

}  // namespace mixroof
