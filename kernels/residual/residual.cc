#include "kernels/residual/residual.h"

#include "kernels/case_dim.h"

namespace mixroof {
namespace {

class ResidualKernel final : public Kernel {
 public:
  std::string_view name() const override { return "residual"; }
  std::string_view summary() const override { return "adds a branch to the residual stream"; }

  std::vector<Operand> operands(const Problem& p) const override {
    const std::vector<std::int64_t> extent = {p.dim("count")};
    // Sums of whole numbers up to 64 are exact in bf16 (whole up to 256).
    const Fill fill{.exact_limit = 64};
    return {{"stream", Access::read, p.formats[0], extent, fill},
            {"branch", Access::read, p.formats[1], extent, fill},
            {"out", Access::write, p.formats[2], extent, {}}};
  }

  Cost cost(const Problem& p) const override {
    Cost cost = compulsory_bytes(p);
    cost.add_flops(Format::fp32, p.dim("count"));
    return cost;
  }

  void reference(const Problem&, std::span<const RefOperand> o) const override {
    for (std::int64_t i = 0; i < o[2].count; ++i) {
      o[2].data[i] = o[0].data[i] + o[1].data[i];
      if (o[2].magnitude) o[2].magnitude[i] = std::abs(o[2].data[i]);
    }
  }

  // One addition in fp32, then one rounding to the output's format.
  double limit(const Problem& p, std::size_t operand, double reference, double) const override {
    return rounding_limit(Format::fp32, reference) + rounding_limit(p.formats[operand], reference);
  }

  std::vector<Case> cases() const override {
    std::vector<Case> cases;
    for (const std::int64_t count : {0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 769, 1000, 1025, 20001})
      cases.push_back({"add", {{"count", count}}});
    return cases;
  }

  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    expect_variant(name(), c, {"add"});
    return residual_problem(case_dim(name(), c, "count"), recipe.stream, recipe.between, recipe.stream);
  }
};

}  // namespace

Problem residual_problem(std::int64_t count, Format stream, Format branch, Format out) {
  at_least("residual", "count", count, 0);
  return {.kernel = "residual",
          .variant = "add",
          .shape = {{"count", count}},
          .formats = {stream, branch, out},
          .constants = {}};
}

const Kernel& residual_kernel() {
  static const ResidualKernel kernel;
  return kernel;
}

}  // namespace mixroof
