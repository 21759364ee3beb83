#include "kernels/cast/cast.h"

#include <fmt/format.h>

#include "harness/numeric/codec.h"
#include "kernels/case_dim.h"

namespace mixroof {
namespace {

/// What a recipe casts (key `role` of a case): weights once per window, the residual stream before a matrix product,
/// the gradient of the stream before it enters the backward products.
enum Role : std::int64_t { kWeights, kActivations, kGradient, kRoles };

class CastKernel final : public Kernel {
 public:
  std::string_view name() const override { return "cast"; }
  std::string_view summary() const override { return "conversion between formats, rounded once"; }
  CostCategory category() const override { return CostCategory::cast; }

  std::vector<Operand> operands(const Problem& p) const override {
    const std::vector<std::int64_t> extent = {p.dim("count")};
    return {{"in", Access::read, p.formats[0], extent, {}}, {"out", Access::write, p.formats[1], extent, {}}};
  }

  Cost cost(const Problem& p) const override { return compulsory_bytes(p); }

  void reference(const Problem& p, std::span<const RefOperand> o) const override {
    for (std::int64_t i = 0; i < o[1].count; ++i) o[1].data[i] = round_to(p.formats[1], o[0].data[i]);
  }

  // The reference rounds as the codec does: nothing may differ.
  double limit(const Problem&, std::size_t, double, double) const override { return 0; }

  std::vector<Case> cases() const override {
    std::vector<Case> cases;
    for (const std::int64_t count : {0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 769, 1000, 1025, 20001})
      cases.push_back({"cast", {{"role", kWeights}, {"count", count}}});
    for (const Role role : {kActivations, kGradient}) cases.push_back({"cast", {{"role", role}, {"count", 1000}}});
    return cases;
  }

  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    expect_variant(name(), c, {"cast"});
    const std::int64_t count = case_dim(name(), c, "count");
    const std::int64_t role = case_dim(name(), c, "role", kWeights);
    if (role < 0 || role >= kRoles)
      throw UsageError(fmt::format("cast: role={} is unknown; use 0 (weights), 1 (activations) or 2 (gradient)", role));
    if (!recipe.casts_weights()) return std::nullopt;
    if (role == kWeights) return cast_problem(count, recipe.params, recipe.matmul_forward);
    return cast_problem(count, recipe.stream, role == kActivations ? recipe.matmul_forward : recipe.between);
  }
};

}  // namespace

Problem cast_problem(std::int64_t count, Format in, Format out) {
  at_least("cast", "count", count, 0);
  return {.kernel = "cast", .variant = "cast", .shape = {{"count", count}}, .formats = {in, out}, .constants = {}};
}

const Kernel& cast_kernel() {
  static const CastKernel kernel;
  return kernel;
}

}  // namespace mixroof
