#include "harness/execute/arithmetic_probe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "harness/execute/kernel_run.h"
#include "harness/numeric/recipe.h"
#include "kernels/cast/cast.h"
#include "kernels/matmul/matmul.h"
#include "kernels/quantize/quantize.h"
#include "kernels/registry.h"
#include "kernels/residual/residual.h"

namespace mixroof {
namespace {

constexpr double kMinSubnormalFp32 = 0x1p-149;

/// Tells the rounding from sums or conversions of 1 and a part of the spacing after it. `round(x)` is 1 + x spacings as
/// the device returns it, in spacings after 1.
Rounding classify(const std::function<double(double)>& round) {
  const double half = round(0.5), below = round(0.25), above = round(0.75), odd_half = round(1.5);
  if (below != 0) return Rounding::other;
  if (above == 0 && half == 0 && odd_half == 1) return Rounding::toward_zero;
  if (above != 1 || odd_half != 2) return Rounding::other;
  return half == 0 ? Rounding::nearest_even : half == 1 ? Rounding::nearest_away : Rounding::other;
}

/// Operands of a problem, each filled with one value, those named below set by the caller.
class Inputs {
 public:
  Inputs(const Kernel& kernel, const Problem& problem, double scale_value) : operands_(kernel.operands(problem)) {
    for (const Operand& operand : operands_) {
      const bool is_scale = operand.name.rfind("scale", 0) == 0;
      values_.emplace_back(static_cast<std::size_t>(operand.count()), is_scale ? scale_value : 0.0);
    }
  }
  std::size_t index(std::string_view name) const {
    for (std::size_t i = 0; i < operands_.size(); ++i)
      if (operands_[i].name == name) return i;
    throw std::logic_error("probe: no operand " + std::string(name));
  }
  std::vector<double>& operator[](std::string_view name) { return values_[index(name)]; }
  const std::vector<std::vector<double>>& all() const { return values_; }

 private:
  std::vector<Operand> operands_;
  std::vector<std::vector<double>> values_;
};

// Conversions.

struct Conversion {
  const Kernel& kernel;
  Problem problem;
  std::string_view in, out;
};

Conversion conversion_to(Format to, std::int64_t count) {
  if (is_fp8(to))
    return {quantize_kernel(), quantize_problem(count, Format::fp32, to, /*accumulate=*/false), "x", "codes"};
  return {cast_kernel(), cast_problem(count, Format::fp32, to), "in", "out"};
}

ConversionFacts probe_conversion(Backend& backend, Format to) {
  const FormatFacts& f = facts(to);
  const auto at = [&](double spacings) { return 1 + spacings * f.epsilon; };
  const std::vector<double> x = {at(0.25), at(0.5), at(0.75), at(1.5), f.min_subnormal, f.min_normal - f.min_subnormal};
  const Conversion c = conversion_to(to, static_cast<std::int64_t>(x.size()));
  const std::unique_ptr<Plan> plan = backend.prepare(c.problem);
  Inputs inputs(c.kernel, c.problem, /*scale_value=*/1);
  inputs[c.in] = x;
  const std::vector<double> out = run_on(backend, c.kernel, c.problem, *plan, inputs.all())[inputs.index(c.out)];
  const auto round = [&](double spacings) {
    const auto i = static_cast<std::size_t>(std::find(x.begin(), x.end(), at(spacings)) - x.begin());
    return (out[i] - 1) / f.epsilon;
  };
  return {to, plan->implementation(), classify(round), out[4] == 0 || out[5] == 0};
}

// Products.

/// A product large enough for the register tiles and blocks of every implementation; what is probed stands in one row
/// and column of otherwise zero matrices.
class ProductProbe {
 public:
  ProductProbe(Backend& backend, Format input, const std::string& implementation)
      : backend_(backend),
        problem_(matmul_problem(MatmulVariant::forward, {kSize, kSize, kSize}, input, input, Format::fp32)),
        plan_(backend.prepare(problem_, implementation)) {}

  static Problem problem(Format input) {
    return matmul_problem(MatmulVariant::forward, {kSize, kSize, kSize}, input, input, Format::fp32);
  }

  const Plan& plan() const { return *plan_; }

  /// a0·b0 + a1·b1 as the implementation returns it, the terms far apart along the reduction.
  double sum(double a0, double b0, double a1 = 0, double b1 = 0) const {
    Inputs inputs(matmul_kernel(), problem_, /*scale_value=*/1);
    inputs["a"][0] = a0;
    inputs["a"][kSize - 2] = a1;
    inputs["b"][0] = b0;
    inputs["b"][kSize - 2] = b1;
    return run_on(backend_, matmul_kernel(), problem_, *plan_, inputs.all())[inputs.index("c")][0];
  }

 private:
  static constexpr std::int64_t kSize = 64;
  Backend& backend_;
  Problem problem_;
  std::unique_ptr<Plan> plan_;
};

/// x · 2^exponent as two factors that every format holds: powers of two between 2^-6 and 2^8, x times one of them.
struct Factors {
  double a, b;
};
Factors split(double x, int exponent) {
  const int half = exponent / 2;
  return {std::ldexp(x, half), std::ldexp(1.0, exponent - half)};
}

// The large term of the sum is 2^16 and not 1, so that terms 2^-28 times as large have factors that E4M3 holds.
constexpr int kOneExponent = 16;
constexpr int kMostBits = 27;

double sum_beside_one(const ProductProbe& probe, double x, int exponent) {
  const Factors one = split(1, kOneExponent), term = split(x, kOneExponent + exponent);
  return std::ldexp(probe.sum(one.a, one.b, term.a, term.b), -kOneExponent);
}

int accumulator_bits(const ProductProbe& probe) {
  int bits = 0;
  while (bits < kMostBits && sum_beside_one(probe, 1, -(bits + 1)) != 1) ++bits;
  return bits;
}

ProductFacts probe_product(Backend& backend, Format input, const std::string& implementation) {
  const ProductProbe probe(backend, input, implementation);
  const FormatFacts& f = facts(input);
  ProductFacts found{.input = input,
                     .implementation = probe.plan().implementation(),
                     .emulated = probe.plan().emulated(),
                     .flushes_subnormal_inputs = false,
                     .flushes_subnormal_results = std::nullopt,
                     .accumulator_mantissa_bits = accumulator_bits(probe)};
  // Large enough that the product is normal in fp32 for every format, and within each.
  const double lift = f.min_subnormal < 0x1p-100 ? 0x1p60 : 1;
  found.flushes_subnormal_inputs = probe.sum(f.min_subnormal, lift) == 0;
  if (f.min_normal * f.min_normal < kMinSubnormalFp32)
    found.flushes_subnormal_results = probe.sum(0x1p-70, 0x1p-70) == 0;
  const int bits = found.accumulator_mantissa_bits;
  // Terms of a quarter spacing and more: four times 1/4, 1/2, 3/4 and 3/2 are 1, 2, 3 and 6.
  found.accumulator_rounding =
      classify([&](double spacings) { return std::ldexp(sum_beside_one(probe, 4 * spacings, -bits - 2) - 1, bits); });
  return found;
}

AdditionFacts probe_addition(Backend& backend) {
  const Problem problem = residual_problem(1, Format::fp32, Format::fp32, Format::fp32);
  const std::unique_ptr<Plan> plan = backend.prepare(problem);
  const std::vector<std::vector<double>> inputs = {{kMinSubnormalFp32}, {kMinSubnormalFp32}, {0.0}};
  return {plan->implementation(),
          run_on(backend, residual_kernel(), problem, *plan, inputs)[2][0] != 2 * kMinSubnormalFp32};
}

}  // namespace

std::string_view name(Rounding rounding) {
  switch (rounding) {
    case Rounding::nearest_even:
      return "nearest_even";
    case Rounding::nearest_away:
      return "nearest_away";
    case Rounding::toward_zero:
      return "toward_zero";
    case Rounding::other:
      return "other";
  }
  return "other";
}

std::optional<bool> ArithmeticFacts::flushes_subnormals(Format format) const {
  std::optional<bool> flushes;
  const auto note = [&](bool found) { flushes = flushes.value_or(false) || found; };
  for (const ConversionFacts& c : conversions)
    if (c.to == format) note(c.flushes_subnormals);
  for (const ProductFacts& p : products)
    if (p.input == format) note(p.flushes_subnormal_inputs || p.flushes_subnormal_results.value_or(false));
  if (format == Format::fp32) note(addition.flushes_subnormals);
  return flushes;
}

ArithmeticFacts probe_arithmetic(Backend& backend) {
  static constexpr std::array kNarrow = {Format::fp16, Format::bf16, Format::fp8_e4m3, Format::fp8_e5m2};
  static constexpr std::array kInputs = {Format::fp32, Format::fp16, Format::bf16, Format::fp8_e4m3, Format::fp8_e5m2};
  ArithmeticFacts found;
  for (const Format to : kNarrow)
    if (backend.supports(conversion_to(to, 1).problem)) found.conversions.push_back(probe_conversion(backend, to));
  for (const Format input : kInputs)
    for (const std::string& implementation : backend.implementations(ProductProbe::problem(input)))
      found.products.push_back(probe_product(backend, input, implementation));
  found.addition = probe_addition(backend);
  return found;
}

}  // namespace mixroof
