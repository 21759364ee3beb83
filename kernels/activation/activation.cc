#include "kernels/activation/activation.h"

#include <cmath>

#include "harness/numeric/checked.h"
#include "kernels/case_dim.h"

namespace mixroof {
namespace {

constexpr double kDelta = 0x1p-24;  // unit roundoff of fp32
constexpr double kTwoRoot2OverPi = 2 * 0.79788456080286535588;
constexpr double kCubic = 0.044715;
constexpr double kForwardConstant = 8, kBackwardConstant = 16;
// What a subnormal e = exp(-2|u|) may cost: half of 2^-149 times the factor it meets (|x| < 12 forward, x·2u' < 250
// backward), in units of the constants above.
constexpr double kForwardFloor = 16 * 0x1p-149 / (kForwardConstant * kDelta);
constexpr double kBackwardFloor = 256 * 0x1p-149 / (kBackwardConstant * kDelta);

struct Logistic {
  double two_u;
  double sigma;       // σ(2u)
  double complement;  // 1 - σ(2u), without cancellation
};

Logistic logistic_of(double x) {
  const double two_u = kTwoRoot2OverPi * (x + kCubic * x * x * x);
  return {two_u, 1 / (1 + std::exp(-two_u)), 1 / (1 + std::exp(two_u))};
}

class ActivationKernel final : public Kernel {
 public:
  std::string_view name() const override { return "activation"; }
  std::string_view summary() const override { return "GELU (tanh form) and its gradient"; }

  std::vector<Operand> operands(const Problem& p) const override {
    const std::vector<std::int64_t> extent = {p.dim("count")};
    // Wide enough that both tails of the curve are met.
    const Fill x_fill{.scale = 2.5};
    if (p.variant == "gelu")
      return {{"x", Access::read, p.formats[0], extent, x_fill}, {"y", Access::write, p.formats[1], extent, {}}};
    return {{"dy", Access::read, p.formats[0], extent, {}},
            {"x", Access::read, p.formats[1], extent, x_fill},
            {"dx", Access::write, p.formats[2], extent, {}}};
  }

  Cost cost(const Problem& p) const override {
    Cost cost = compulsory_bytes(p);
    cost.add_flops(Format::fp32, checked_product({p.variant == "gelu" ? 9 : 17, p.dim("count")}));
    return cost;
  }

  void reference(const Problem& p, std::span<const RefOperand> o) const override {
    if (p.variant == "gelu")
      forward(o[0], o[1]);
    else
      backward(o[0], o[1], o[2]);
  }

  double limit(const Problem& p, std::size_t operand, double reference, double magnitude) const override {
    const double constant = p.variant == "gelu" ? kForwardConstant : kBackwardConstant;
    return constant * kDelta * magnitude + rounding_limit(Format::fp32, reference) +
           rounding_limit(p.formats[operand], reference);
  }

  std::vector<Case> cases() const override {
    std::vector<Case> cases;
    for (const char* variant : {"gelu", "gelu_backward"})
      for (const std::int64_t count : {0, 1, 7, 8, 15, 16, 17, 31, 33, 63, 65, 769, 1023, 1025, 5000})
        cases.push_back({variant, {{"count", count}}});
    return cases;
  }

  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    expect_variant(name(), c, {"gelu", "gelu_backward"});
    const std::int64_t count = case_dim(name(), c, "count");
    if (c.variant == "gelu") return gelu_problem(count, recipe.between, recipe.between);
    return gelu_backward_problem(count, recipe.between, recipe.between, recipe.between);
  }

 private:
  static void forward(const RefOperand& x, const RefOperand& y) {
    for (std::int64_t i = 0; i < x.count; ++i) {
      const Logistic s = logistic_of(x.data[i]);
      // e^-t wins over any x: the limit at minus infinity is zero, not NaN.
      y.data[i] = s.sigma == 0 ? -0.0 : x.data[i] * s.sigma;
      if (y.magnitude) {
        const double condition = s.complement == 0 ? 0 : std::fabs(s.two_u) * s.complement;
        y.magnitude[i] = std::fabs(y.data[i]) * (1 + (s.sigma == 0 ? 0 : condition)) + kForwardFloor;
      }
    }
  }

  static void backward(const RefOperand& dy, const RefOperand& x, const RefOperand& dx) {
    for (std::int64_t i = 0; i < x.count; ++i) {
      const double v = x.data[i];
      const Logistic s = logistic_of(v);
      const double slope = s.sigma * s.complement;  // of σ
      const double two_du = kTwoRoot2OverPi * (1 + 3 * kCubic * v * v);
      const double bend = slope == 0 ? 0 : v * slope * two_du;
      dx.data[i] = dy.data[i] * (s.sigma + bend);
      if (dx.magnitude) {
        const double condition = slope == 0 ? 1 : 1 + std::fabs(s.two_u);
        dx.magnitude[i] = std::fabs(dy.data[i]) * ((s.sigma + std::fabs(bend)) * condition + kBackwardFloor);
      }
    }
  }
};

}  // namespace

Problem gelu_problem(std::int64_t count, Format x, Format y) {
  at_least("activation", "count", count, 0);
  return {.kernel = "activation", .variant = "gelu", .shape = {{"count", count}}, .formats = {x, y}, .constants = {}};
}

Problem gelu_backward_problem(std::int64_t count, Format dy, Format x, Format dx) {
  at_least("activation", "count", count, 0);
  return {.kernel = "activation",
          .variant = "gelu_backward",
          .shape = {{"count", count}},
          .formats = {dy, x, dx},
          .constants = {}};
}

const Kernel& activation_kernel() {
  static const ActivationKernel kernel;
  return kernel;
}

}  // namespace mixroof
