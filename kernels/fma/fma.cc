#include "kernels/fma/fma.h"

#include <algorithm>
#include <cmath>

#include "harness/numeric/checked.h"
#include "kernels/case_dim.h"

namespace mixroof {
namespace {

// With |x| ≤ 64 and up to 16 steps every value is a multiple of 2⁻¹⁷ below 2⁷, so it fits 24 bits.
constexpr int kExactInput = 64;
constexpr std::int64_t kExactSteps = 16;

class FmaKernel : public Kernel {
 public:
  std::string_view name() const override { return "fma"; }
  std::string_view summary() const override {
    return "fused multiply-adds per value read and written: arithmetic intensity as a knob";
  }

  std::vector<Operand> operands(const Problem& problem) const override {
    const std::int64_t count = problem.dim("count");
    const int exact = problem.dim("fmas") <= kExactSteps ? kExactInput : 0;
    return {{.name = "x", .access = Access::read, .extent = {count}, .fill = {.exact_limit = exact}},
            {.name = "y", .access = Access::write, .extent = {count}, .fill = {}}};
  }

  Cost cost(const Problem& problem) const override {
    Cost cost = compulsory_bytes(problem);
    cost.add_flops(Format::fp32, checked_product({2, problem.dim("fmas"), problem.dim("count")}));
    return cost;
  }

  void reference(const Problem& problem, std::span<const RefOperand> operands) const override {
    const std::int64_t fmas = problem.dim("fmas");
    for (std::int64_t i = 0; i < operands[0].count; ++i) {
      const double x = operands[0].data[i];
      double y = x;
      for (std::int64_t step = 0; step < fmas; ++step) y = y * 0.5 + 0.25;
      operands[1].data[i] = y;
      if (operands[1].magnitude)
        operands[1].magnitude[i] =
            fmas == 0 ? 0
                      : 1 + static_cast<double>(fmas) *
                                std::fabs(std::ldexp(x, -static_cast<int>(std::min<std::int64_t>(fmas, 4096))));
    }
  }

  /// Step k rounds a value of at most |x|·2⁻ᵏ + ½ by u times that, and each later step halves the error, so the sum
  /// over f steps is at most u·(f·|x|·2⁻ᶠ + 1): u times the magnitude above.
  double limit(const Problem&, std::size_t, double, double magnitude) const override {
    return facts(Format::fp32).unit_roundoff * magnitude * 1.01;
  }

  std::vector<Case> cases() const override {
    std::vector<Case> all;
    for (const std::int64_t count : {0, 1, 7, 16, 95, 193, 1000, 20011})
      for (const std::int64_t fmas : {0, 1, 5, 64}) all.push_back({"sweep", {{"count", count}, {"fmas", fmas}}});
    return all;
  }

  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    if (recipe.name != "fp32") return std::nullopt;
    return fma_problem(case_dim("fma", c, "count"), case_dim("fma", c, "fmas"));
  }
};

}  // namespace

Problem fma_problem(std::int64_t count, std::int64_t fmas) {
  at_least("fma", "count", count, 0);
  at_least("fma", "fmas", fmas, 0);
  return {.kernel = "fma",
          .variant = "sweep",
          .shape = {{"count", count}, {"fmas", fmas}},
          .formats = {Format::fp32, Format::fp32},
          .constants = {}};
}

const Kernel& fma_kernel() {
  static const FmaKernel kernel;
  return kernel;
}

}  // namespace mixroof
