// Problem, cost, reference and limit of bias gradients.
#include "kernels/bias_grad/bias_grad.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/numeric/checked.h"
#include "kernels/case_dim.h"

namespace mixroof {
namespace {

class BiasGradKernel : public Kernel {
 public:
  std::string_view name() const override { return "bias_grad"; }
  std::string_view summary() const override { return "gradient of a bias: the sum of output gradients over rows"; }

  std::vector<Operand> operands(const Problem& problem) const override {
    const std::int64_t rows = problem.dim("rows"), width = problem.dim("width");
    // Sums of rows + 1 whole numbers up to 8 stay below 2^24, and 8 exists in every format.
    const int limit = static_cast<int>(std::min<std::int64_t>(8, (std::int64_t{1} << 24) / (rows + 1)));
    return {{"dy", Access::read, problem.formats.at(0), {rows, width}, {.exact_limit = limit}},
            {"dbias",
             problem.accumulate ? Access::read_write : Access::write,
             problem.formats.at(1),
             {width},
             {.exact_limit = limit}}};
  }

  // One addition per element of dy; n values are summed with n - 1 of them, and accumulating adds the last.
  Cost cost(const Problem& problem) const override {
    const std::int64_t rows = problem.dim("rows"), width = problem.dim("width");
    Cost cost = compulsory_bytes(problem);
    cost.add_flops(Format::fp32,
                   checked_product({width, std::max<std::int64_t>(problem.accumulate ? rows : rows - 1, 0)}));
    return cost;
  }

  void reference(const Problem& problem, std::span<const RefOperand> operands) const override {
    const std::int64_t rows = problem.dim("rows"), width = problem.dim("width");
    const RefOperand& dbias = operands[1];
    for (std::int64_t j = 0; j < width; ++j) {
      double sum = problem.accumulate ? dbias.data[j] : 0.0, magnitude = std::fabs(sum);
      for (std::int64_t i = 0; i < rows; ++i) {
        sum += operands[0].data[i * width + j];
        magnitude += std::fabs(operands[0].data[i * width + j]);
      }
      dbias.data[j] = sum;
      if (dbias.magnitude) dbias.magnitude[j] = magnitude;
    }
  }

  // The probabilistic bound of matmul's limit for a sum of `rows` terms and one addend.
  double limit(const Problem& problem, std::size_t operand, double reference, double magnitude) const override {
    const auto rows = static_cast<double>(problem.dim("rows"));
    const double roundings = std::min(rows, 4 * std::sqrt(rows)) + 1;
    return rounding_limit(problem.formats[operand], reference) +
           roundings * facts(Format::fp32).unit_roundoff * magnitude;
  }

  // Column tiles are 256 wide, row chunks 64 tall.
  std::vector<Case> cases() const override {
    std::vector<Case> all;
    bool accumulate = false;
    for (const auto& [rows, width] : {std::pair{1, 1},
                                      {3, 7},
                                      {5, 16},
                                      {17, 33},
                                      {63, 65},
                                      {64, 255},
                                      {65, 256},
                                      {129, 257},
                                      {33, 771},
                                      {513, 5},
                                      {0, 19},
                                      {4, 0}}) {
      all.push_back({"backward", {{"rows", rows}, {"width", width}, {"accumulate", accumulate}}});
      accumulate = !accumulate;
    }
    return all;
  }

  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    if (c.variant != "backward")
      throw_unknown("bias_grad variant", c.variant, std::vector<std::string>{"backward"}, "mixroof list kernels");
    const auto size = [&](std::string_view key) {
      return at_least("bias_grad", key, case_dim("bias_grad", c, key), 0);
    };
    return bias_grad_problem(size("rows"), size("width"), recipe.between, recipe.grads,
                             case_dim("bias_grad", c, "accumulate", 0) != 0);
  }
};

}  // namespace

Problem bias_grad_problem(std::int64_t rows, std::int64_t width, Format dy, Format dbias, bool accumulate) {
  return {.kernel = "bias_grad",
          .variant = "backward",
          .shape = {{"rows", rows}, {"width", width}},
          .formats = {dy, dbias},
          .accumulate = accumulate,
          .constants = {}};
}

const Kernel& bias_grad_kernel() {
  static const BiasGradKernel kernel;
  return kernel;
}

}  // namespace mixroof
