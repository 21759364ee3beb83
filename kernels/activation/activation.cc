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
// The same for e = exp(-|gate|), which is 0 from 104 on.
constexpr double kSwigluFloor = 104 * 0x1p-149;

bool is_gelu(const Problem& p) { return p.variant.starts_with("gelu"); }
bool is_backward(const Problem& p) { return p.variant.ends_with("backward"); }

struct Logistic {
  double argument;
  double sigma;       // σ(argument)
  double complement;  // 1 - σ, without cancellation
};

Logistic logistic_at(double t) { return {t, 1 / (1 + std::exp(-t)), 1 / (1 + std::exp(t))}; }
/// σ(2u) of GELU.
Logistic logistic_of(double x) { return logistic_at(kTwoRoot2OverPi * (x + kCubic * x * x * x)); }

/// e^-t wins over any x: the limit at minus infinity is zero, not NaN.
double times_sigma(double x, const Logistic& s) { return s.sigma == 0 ? -0.0 : x * s.sigma; }

class ActivationKernel final : public Kernel {
 public:
  std::string_view name() const override { return "activation"; }
  std::string_view summary() const override { return "GELU (tanh form), SwiGLU and their gradients"; }

  std::vector<Operand> operands(const Problem& p) const override {
    // Wide enough that both tails of the curve are met.
    const Fill x_fill{.scale = 2.5};
    std::vector<std::int64_t> in, out;
    if (is_gelu(p)) {
      in = out = {p.dim("count")};
    } else {
      in = {p.dim("rows"), checked_product({2, p.dim("width")})};
      out = {p.dim("rows"), p.dim("width")};
    }
    const char* const x = is_gelu(p) ? "x" : "gate_up";
    if (!is_backward(p))
      return {{x, Access::read, p.formats[0], in, x_fill}, {"y", Access::write, p.formats[1], out, {}}};
    return {{"dy", Access::read, p.formats[0], out, {}},
            {x, Access::read, p.formats[1], in, x_fill},
            {std::string("d") + x, Access::write, p.formats[2], in, {}}};
  }

  Cost cost(const Problem& p) const override {
    Cost cost = compulsory_bytes(p);
    if (is_gelu(p))
      cost.add_flops(Format::fp32, checked_product({is_backward(p) ? 17 : 9, p.dim("count")}));
    else
      cost.add_flops(Format::fp32, checked_product({is_backward(p) ? 11 : 5, p.dim("rows"), p.dim("width")}));
    return cost;
  }

  void reference(const Problem& p, std::span<const RefOperand> o) const override {
    if (is_gelu(p))
      is_backward(p) ? backward(o[0], o[1], o[2]) : forward(o[0], o[1]);
    else
      is_backward(p) ? swiglu_backward(p.dim("width"), o[0], o[1], o[2]) : swiglu_forward(p.dim("width"), o[0], o[1]);
  }

  double limit(const Problem& p, std::size_t operand, double reference, double magnitude) const override {
    const double constant = is_backward(p) ? kBackwardConstant : kForwardConstant;
    return constant * kDelta * magnitude + rounding_limit(Format::fp32, reference) +
           rounding_limit(p.formats[operand], reference);
  }

  std::vector<Case> cases() const override {
    std::vector<Case> cases;
    for (const char* variant : {"gelu", "gelu_backward"})
      for (const std::int64_t count : {0, 1, 7, 8, 15, 16, 17, 31, 33, 63, 65, 769, 1023, 1025, 5000})
        cases.push_back({variant, {{"count", count}}});
    constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {{0, 5},  {1, 1},  {3, 7},  {2, 8},    {3, 16},  {2, 17},
                                                                 {5, 33}, {1, 65}, {3, 769}, {2, 1024}, {2, 1025}, {1, 5000}};
    for (const char* variant : {"swiglu", "swiglu_backward"})
      for (const auto& [rows, width] : kShapes) cases.push_back({variant, {{"rows", rows}, {"width", width}}});
    return cases;
  }

  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    expect_variant(name(), c, {"gelu", "gelu_backward", "swiglu", "swiglu_backward"});
    const Format f = recipe.between;
    if (c.variant.starts_with("gelu")) {
      const std::int64_t count = case_dim(name(), c, "count");
      return c.variant == "gelu" ? gelu_problem(count, f, f) : gelu_backward_problem(count, f, f, f);
    }
    const std::int64_t rows = case_dim(name(), c, "rows"), width = case_dim(name(), c, "width");
    return c.variant == "swiglu" ? swiglu_problem(rows, width, f, f) : swiglu_backward_problem(rows, width, f, f, f);
  }

 private:
  static void forward(const RefOperand& x, const RefOperand& y) {
    for (std::int64_t i = 0; i < x.count; ++i) {
      const Logistic s = logistic_of(x.data[i]);
      y.data[i] = times_sigma(x.data[i], s);
      if (y.magnitude) {
        const double condition = s.complement == 0 ? 0 : std::fabs(s.argument) * s.complement;
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
        const double condition = slope == 0 ? 1 : 1 + std::fabs(s.argument);
        dx.magnitude[i] = std::fabs(dy.data[i]) * ((s.sigma + std::fabs(bend)) * condition + kBackwardFloor);
      }
    }
  }

  static void swiglu_forward(std::int64_t width, const RefOperand& gate_up, const RefOperand& y) {
    for (std::int64_t i = 0; i < y.count; ++i) {
      const double* gate = gate_up.data + i / width * 2 * width + i % width;
      const double up = gate[width];
      y.data[i] = times_sigma(*gate, logistic_at(*gate)) * up;
      if (y.magnitude)
        y.magnitude[i] = std::fabs(y.data[i]) + kSwigluFloor * (1 + std::fabs(up)) / (kForwardConstant * kDelta);
    }
  }

  static void swiglu_backward(std::int64_t width, const RefOperand& dy, const RefOperand& gate_up,
                              const RefOperand& dgate_up) {
    for (std::int64_t i = 0; i < dy.count; ++i) {
      const std::int64_t gate_at = i / width * 2 * width + i % width, up_at = gate_at + width;
      const double gate = gate_up.data[gate_at], up = gate_up.data[up_at];
      const Logistic s = logistic_at(gate);
      const double bend = s.sigma == 0 || s.complement == 0 ? 0 : gate * s.sigma * s.complement;
      const double silu = times_sigma(gate, s);
      dgate_up.data[gate_at] = dy.data[i] * up * (s.sigma + bend);
      dgate_up.data[up_at] = dy.data[i] * silu;
      if (!dgate_up.magnitude) continue;
      const double size = std::fabs(dy.data[i]), floor = kSwigluFloor / (kBackwardConstant * kDelta);
      dgate_up.magnitude[gate_at] =
          size * (std::fabs(up) * (s.sigma + std::fabs(bend) + floor) + floor);
      dgate_up.magnitude[up_at] = size * (std::fabs(silu) / 2 + floor);
    }
  }
};

Problem swiglu_shaped(const char* variant, std::int64_t rows, std::int64_t width, std::vector<Format> formats) {
  at_least("activation", "rows", rows, 0);
  at_least("activation", "width", width, 1);
  return {.kernel = "activation",
          .variant = variant,
          .shape = {{"rows", rows}, {"width", width}},
          .formats = std::move(formats),
          .constants = {}};
}

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

Problem swiglu_problem(std::int64_t rows, std::int64_t width, Format gate_up, Format y) {
  return swiglu_shaped("swiglu", rows, width, {gate_up, y});
}

Problem swiglu_backward_problem(std::int64_t rows, std::int64_t width, Format dy, Format gate_up, Format dgate_up) {
  return swiglu_shaped("swiglu_backward", rows, width, {dy, gate_up, dgate_up});
}

const Kernel& activation_kernel() {
  static const ActivationKernel kernel;
  return kernel;
}

}  // namespace mixroof
