// Cost, reference and error limit of AdamW; kernels/adamw/adamw.h is the contract.
#include "kernels/adamw/adamw.h"

#include <cmath>

#include "harness/numeric/checked.h"
#include "kernels/adamw/layout.h"
#include "kernels/case_dim.h"
#include "kernels/control.h"
#include "kernels/control_operand.h"

namespace mixroof {
namespace {

/// Scale, decay, the two moments (3 and 4), the two corrections, root, eps, division, learning rate, subtraction; a
/// division or a square root counts as one.
constexpr std::int64_t kFlopsPerElement = 16;

class AdamwKernel : public Kernel {
 public:
  std::string_view name() const override { return "adamw"; }
  std::string_view summary() const override {
    return "AdamW with decoupled decay, in place, rounding the parameters on the way";
  }
  CostCategory category() const override { return CostCategory::optimizer; }

  std::vector<Operand> operands(const Problem& p) const override {
    const AdamwLayout layout(p);
    const std::int64_t count = p.dim("count");
    // Gradients carry the loss scale 1024 of the control tensor.
    const Fill grad{.scale = 20.0}, value{.scale = 0.5}, moment1{.scale = 0.01};
    const Fill moment2{.kind = Fill::Kind::positive, .scale = 4e-4, .offset = 1e-5};
    std::vector<Operand> operands = {
        {.name = "grad", .format = p.formats[layout.grad], .extent = {count}, .fill = grad}};
    operands.push_back({.name = "param",
                        .access = layout.has_master ? Access::write : Access::read_write,
                        .format = p.formats[layout.param],
                        .extent = {count},
                        .fill = value});
    const auto add_state = [&](std::string_view operand, std::size_t place, const Fill& fill) {
      operands.push_back({.name = std::string(operand),
                          .access = Access::read_write,
                          .format = p.formats[place],
                          .extent = {count},
                          .fill = fill});
    };
    if (layout.has_master) add_state("master", layout.state, value);
    add_state("moment1", layout.moment1, moment1);
    add_state("moment2", layout.moment2, moment2);
    operands.push_back(control_operand());
    return operands;
  }

  Cost cost(const Problem& p) const override {
    Cost cost = compulsory_bytes(p);
    cost.add_flops(Format::fp32, checked_product({kFlopsPerElement, p.dim("count")}));
    return cost;
  }

  void reference(const Problem& p, std::span<const RefOperand> operands) const override;

  /// `magnitude` is the sum of the terms' magnitudes, each times the fp32 roundings it passes (reference), so
  /// arithmetic costs at most u = 2^-24 of it, and a few smallest subnormals where a term underflows. Then one rounding
  /// to the format.
  double limit(const Problem& p, std::size_t operand, double reference, double magnitude) const override {
    if (operand == AdamwLayout(p).control) return 0;
    const FormatFacts& fp32 = facts(Format::fp32);
    const double arithmetic = fp32.unit_roundoff * magnitude + 4 * fp32.min_subnormal;
    const Format format = p.formats[operand];
    return format == Format::fp32 ? arithmetic : arithmetic + rounding_limit(format, std::fabs(reference) + arithmetic);
  }

  std::vector<Case> cases() const override {
    std::vector<Case> cases;
    for (const std::string_view grad : {"fp32", "fp16", "bf16"})
      for (const std::int64_t count : {0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, 100003})
        cases.push_back({std::string(grad), {{"count", count}}});
    return cases;
  }

  /// The variant names the gradient's format: the recipe's own, or fp32 as windows of several micro-batches keep them.
  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    const std::optional<Format> grad = parse_format(c.variant);
    if (!grad || (*grad != recipe.grads && *grad != Format::fp32)) return std::nullopt;
    return adamw_problem(case_dim(name(), c, "count"), *grad, recipe.params, recipe.master.has_value(), recipe.moments,
                         {});
  }
};

void AdamwKernel::reference(const Problem& p, std::span<const RefOperand> operands) const {
  const AdamwLayout layout(p);
  double* control = operands[layout.control].data;
  if (slot(control, Slot::apply) == 0) return;
  const double beta1 = p.constant("beta1"), beta2 = p.constant("beta2");
  const double rate = slot(control, Slot::learning_rate);
  const double correction1 = slot(control, Slot::bias_correction1), correction2 = slot(control, Slot::bias_correction2);
  const auto set_magnitude = [&](std::size_t operand, std::int64_t i, double magnitude) {
    if (operands[operand].magnitude != nullptr) operands[operand].magnitude[i] = magnitude;
  };

  for (std::int64_t i = 0; i < operands[layout.grad].count; ++i) {
    const double grad = operands[layout.grad].data[i] * slot(control, Slot::grad_factor);
    double& value = operands[layout.state].data[i];
    double& m = operands[layout.moment1].data[i];
    double& v = operands[layout.moment2].data[i];
    const double m_terms = beta1 * std::fabs(m) + (1 - beta1) * std::fabs(grad);
    m = beta1 * m + (1 - beta1) * grad;
    v = beta2 * v + (1 - beta2) * grad * grad;
    const double denominator = std::sqrt(v / correction2) + p.constant("eps");
    value = value * (1 - rate * p.constant("weight_decay")) - rate * (m / correction1) / denominator;
    operands[layout.param].data[i] = value;
    if (!std::isfinite(value) || !std::isfinite(m) || !std::isfinite(v)) slot(control, Slot::state_nonfinite) = 1;

    // Roundings, each at most u: a gradient term of m passes 5 (factor, product, 1 - β1, product, sum), one of v 8; the
    // denominator adds 7 (v's 8, correction and product halved by the root, the root, eps, the sum) to m's 5, quotient,
    // step and product 3, the difference 1; the decayed value passes 3.
    const double step_terms = rate * (m_terms / correction1) / denominator;
    set_magnitude(layout.moment1, i, 5 * m_terms);
    set_magnitude(layout.moment2, i, 8 * v);
    set_magnitude(layout.state, i, 3 * std::fabs(value) + 20 * step_terms);
    set_magnitude(layout.param, i, 3 * std::fabs(value) + 20 * step_terms);
  }
}

}  // namespace

Problem adamw_problem(std::int64_t count, Format grad, Format param, bool master, Format moments,
                      const AdamwConstants& constants) {
  std::vector<Format> formats = {grad, param};
  if (master) formats.push_back(Format::fp32);
  formats.insert(formats.end(), {moments, moments, Format::fp64});
  return {.kernel = "adamw",
          .variant = std::string(name(grad)),
          .shape = {{"count", at_least("adamw", "count", count, 0)}},
          .formats = std::move(formats),
          .constants = {{"beta1", constants.beta1},
                        {"beta2", constants.beta2},
                        {"eps", constants.eps},
                        {"weight_decay", constants.weight_decay}}};
}

const Kernel& adamw_kernel() {
  static const AdamwKernel kernel;
  return kernel;
}

}  // namespace mixroof
