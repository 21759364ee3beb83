// Problem, cost, reference and limit of matrix products. The variants differ only in how their operands lie in memory,
// so each function reads that from one place (`a_index`, `b_index`); a new variant adds a row to both.
#include "kernels/matmul/matmul.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "harness/numeric/checked.h"
#include "kernels/case_dim.h"
#include "kernels/matmul/matmul_gemm.h"
#include "kernels/matmul/matmul_layout.h"
#include "kernels/quantize/scale_rules.h"

namespace mixroof {
namespace {

constexpr double kUnitRoundoffFp32 = 0x1p-24;
/// Whole numbers up to 8 exist in every format, e5m2 included.
constexpr double kMostExact = 8;
/// Scales of FP8 inputs in checks: powers of two, so that integer checks stay exact; unequal, so that a mix-up shows.
constexpr double kCheckScaleA = 16, kCheckScaleB = 8;

const std::vector<std::string>& variant_names() {
  static const std::vector<std::string> names = {"forward", "dgrad", "wgrad"};
  return names;
}

MatmulVariant checked_variant(const std::string& name) {
  const std::vector<std::string>& names = variant_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw_unknown("matmul variant", name, names, "mixroof list kernels");
  return static_cast<MatmulVariant>(found - names.begin());
}

/// Where element (i, p) of a and (p, j) of b lie.
std::int64_t a_index(const MatmulLayout& l, std::int64_t i, std::int64_t p) {
  return l.variant == MatmulVariant::wgrad ? p * l.m + i : i * l.k + p;
}
std::int64_t b_index(const MatmulLayout& l, std::int64_t p, std::int64_t j) {
  return l.variant == MatmulVariant::forward ? j * l.k + p : p * l.n + j;
}

/// Where the block scales of those elements lie.
std::int64_t a_scale_index(const MatmulLayout& l, std::int64_t i, std::int64_t p) {
  return l.variant == MatmulVariant::wgrad ? p / l.block * l.m + i : i * l.blocks() + p / l.block;
}
std::int64_t b_scale_index(const MatmulLayout& l, std::int64_t p, std::int64_t j) {
  return l.variant == MatmulVariant::forward ? j * l.blocks() + p / l.block : p / l.block * l.n + j;
}

/// Largest L with k·L² (and a bias and an addend up to 8, times both check scales) below 2^24.
int exact_limit(std::int64_t k) {
  const double room = 0x1p24 - 0x1p15;
  return static_cast<int>(
      std::min(kMostExact, std::floor(std::sqrt(room / static_cast<double>(std::max<std::int64_t>(k, 1))))));
}

class MatmulKernel : public Kernel {
 public:
  std::string_view name() const override { return "matmul"; }
  std::string_view summary() const override {
    return "matrix products of a linear layer: forward with bias, gradient of the input, gradient of the weights";
  }
  CostCategory category() const override { return CostCategory::matmul; }
  std::vector<Operand> operands(const Problem& problem) const override;
  Cost cost(const Problem& problem) const override;
  std::int64_t workspace_bytes(const Problem& problem, const Target& target) const override;
  void reference(const Problem& problem, std::span<const RefOperand> operands) const override;
  double limit(const Problem& problem, std::size_t operand, double reference, double magnitude) const override;
  std::vector<Case> cases() const override;
  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override;
};

std::vector<Operand> MatmulKernel::operands(const Problem& problem) const {
  const MatmulLayout l = matmul_layout(problem);
  const int limit = exact_limit(l.k);
  const bool forward = l.variant == MatmulVariant::forward, wgrad = l.variant == MatmulVariant::wgrad;
  std::vector<Operand> all;
  const auto add = [&](std::string name, Access access, std::vector<std::int64_t> extent, Fill fill) {
    all.push_back({std::move(name), access, problem.formats.at(all.size()), std::move(extent), fill});
  };
  add("a", Access::read, wgrad ? std::vector{l.k, l.m} : std::vector{l.m, l.k},
      {.scale = l.has_scales() && l.block == 0 ? kCheckScaleA : 1, .exact_limit = limit});
  add("b", Access::read, forward ? std::vector{l.n, l.k} : std::vector{l.k, l.n},
      {.scale = l.has_scales() && l.block == 0 ? kCheckScaleB : 1, .exact_limit = limit});
  if (l.bias >= 0) add("bias", Access::read, {l.n}, {.exact_limit = limit});
  if (l.block > 0) {
    // Small whole numbers or powers of two keep integer checks exact, and differ from block to block.
    const Fill fill = problem.formats.at(l.scale_a) == Format::e8m0
                          ? Fill{.kind = Fill::Kind::positive, .scale = 1, .offset = 0.5}
                          : Fill{.kind = Fill::Kind::positive, .scale = 1, .offset = 0.1, .exact_limit = 2};
    const auto scales = [&](std::int64_t lines, bool k_runs_in_rows) {
      return k_runs_in_rows ? std::vector{lines, l.blocks()} : std::vector{l.blocks(), lines};
    };
    add("scale_a", Access::read, scales(l.m, !wgrad), fill);
    add("scale_b", Access::read, scales(l.n, forward), fill);
  } else if (l.has_scales()) {
    add("scale_a", Access::read, {1}, {.kind = Fill::Kind::constant, .offset = kCheckScaleA});
    add("scale_b", Access::read, {1}, {.kind = Fill::Kind::constant, .offset = kCheckScaleB});
  }
  add("c", problem.accumulate ? Access::read_write : Access::write, {l.m, l.n}, {.exact_limit = limit});
  return all;
}

Cost MatmulKernel::cost(const Problem& problem) const {
  const MatmulLayout l = matmul_layout(problem);
  Cost cost = compulsory_bytes(problem);
  const auto padded = [&](std::int64_t size, const char* multiple) {
    const std::int64_t by = problem.dim_or(multiple, 1);
    return (size + by - 1) / by * by;
  };
  const auto format = static_cast<std::size_t>(problem.formats[0]);
  cost.useful_flops[format] = checked_product({2, l.m, l.n, l.k});
  cost.padded_flops[format] =
      checked_product({2, padded(l.m, "multiple_m"), padded(l.n, "multiple_n"), padded(l.k, "multiple_k")});
  return cost;
}

std::int64_t MatmulKernel::workspace_bytes(const Problem& problem, const Target& target) const {
  if (target.backend != "cpu") return 0;
  const MatmulLayout l = matmul_layout(problem);
  return gemm_workspace_bytes(gemm_blocking(l.m, l.n, l.k, target.threads));
}

void MatmulKernel::reference(const Problem& problem, std::span<const RefOperand> operands) const {
  const MatmulLayout l = matmul_layout(problem);
  const double* a = operands[0].data;
  const double* b = operands[1].data;
  const RefOperand& c = operands[l.c];
  const double scale = l.has_scales() && l.block == 0 ? operands[l.scale_a].data[0] * operands[l.scale_b].data[0] : 1.0;
  const auto a_value = [&](std::int64_t i, std::int64_t p) {
    return l.block == 0 ? a[a_index(l, i, p)] : a[a_index(l, i, p)] * operands[l.scale_a].data[a_scale_index(l, i, p)];
  };
  const auto b_value = [&](std::int64_t p, std::int64_t j) {
    return l.block == 0 ? b[b_index(l, p, j)] : b[b_index(l, p, j)] * operands[l.scale_b].data[b_scale_index(l, p, j)];
  };
  for (std::int64_t i = 0; i < l.m; ++i)
    for (std::int64_t j = 0; j < l.n; ++j) {
      double sum = 0, magnitude = 0;
      for (std::int64_t p = 0; p < l.k; ++p) {
        const double term = a_value(i, p) * b_value(p, j);
        sum += term;
        magnitude += std::fabs(term);
      }
      const double bias = l.bias >= 0 ? operands[static_cast<std::size_t>(l.bias)].data[j] : 0.0;
      const double before = problem.accumulate ? c.data[i * l.n + j] : 0.0;
      c.data[i * l.n + j] = sum / scale + bias + before;
      if (c.magnitude) c.magnitude[i * l.n + j] = magnitude / std::fabs(scale) + std::fabs(bias) + std::fabs(before);
    }
}

// Rounding errors of an fp32 sum of k products behave like independent ones: with high probability they stay below
// λ·√k·u·Σ|a·b| (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41(5),
// 2019, theorem 2.4), and always below k·u·Σ|a·b| to first order. λ = 4 leaves one element in 1500 by that bound, which
// is far from reached: the bound takes every partial sum as large as Σ|a·b|. Four more roundings: two scales (per
// tensor at the end, by blocks on each factor), bias, addend. One dropped term of average size is Σ|a·b|/k, above the limit for k^1.5 < 2^22, that is k < 26000.
double MatmulKernel::limit(const Problem& problem, std::size_t operand, double reference, double magnitude) const {
  const auto k = static_cast<double>(problem.dim("k"));
  const double roundings = std::min(k, 4 * std::sqrt(k)) + 4;
  return rounding_limit(problem.formats[operand], reference) + roundings * kUnitRoundoffFp32 * magnitude;
}

// Register tiles are 6x16 (AVX2), 14x32 (AVX-512) and 6x2; blocks are 504 rows, 768 columns and 256 of k.
std::vector<Case> MatmulKernel::cases() const {
  using Shape = std::array<std::int64_t, 3>;
  static constexpr Shape kShapes[] = {
      {1, 1, 1},    {5, 15, 7},   {6, 16, 16},  {7, 17, 15}, {13, 31, 17}, {14, 32, 32}, {15, 33, 31}, {63, 65, 64},
      {64, 63, 65}, {65, 64, 63}, {33, 1, 129}, {1, 97, 33}, {3, 771, 5},  {509, 3, 9},  {3, 5, 771},  {43, 49, 257}};
  std::vector<Case> all;
  const auto add = [&](std::size_t variant, const Shape& s, bool flag) {
    Case c{variant_names()[variant], {{"m", s[0]}, {"n", s[1]}, {"k", s[2]}}};
    if (variant == 0) c.shape.emplace_back("bias", flag);
    if (variant == 2) c.shape.emplace_back("accumulate", flag);
    all.push_back(std::move(c));
  };
  for (std::size_t variant = 0; variant < 3; ++variant) {
    bool flag = false;
    for (const Shape& shape : kShapes) add(variant, shape, flag = !flag);
    for (const Shape& empty : {Shape{3, 17, 0}, Shape{0, 5, 7}, Shape{4, 0, 3}}) add(variant, empty, true);
  }
  add(0, {65, 64, 63}, false);
  add(2, {65, 64, 63}, true);
  return all;
}

std::optional<Problem> MatmulKernel::problem(const Recipe& recipe, const Case& c) const {
  const MatmulVariant variant = checked_variant(c.variant);
  const auto size = [&](std::string_view key) { return at_least("matmul", key, case_dim("matmul", c, key), 0); };
  const MatmulShape shape{size("m"), size("n"), size("k")};
  const bool bias = case_dim("matmul", c, "bias", 0) != 0, accumulate = case_dim("matmul", c, "accumulate", 0) != 0;
  if (bias && variant != MatmulVariant::forward)
    throw UsageError(fmt::format("matmul {}: bias=1 goes with forward only", c.variant));
  if (accumulate && variant != MatmulVariant::wgrad)
    throw UsageError(fmt::format("matmul {}: accumulate=1 goes with wgrad only", c.variant));
  const bool forward = variant == MatmulVariant::forward, wgrad = variant == MatmulVariant::wgrad;
  const MatmulScales scales{case_dim("matmul", c, "block", scale_block(recipe.fp8, shape.k)), scale_format(recipe.fp8)};
  return matmul_problem(variant, shape, forward ? recipe.matmul_forward : recipe.matmul_gradient, recipe.matmul_forward,
                        wgrad ? recipe.grads : recipe.between, bias, recipe.params, accumulate, scales);
}

}  // namespace

MatmulLayout matmul_layout(const Problem& problem) {
  MatmulLayout l;
  l.variant = checked_variant(problem.variant);
  l.m = problem.dim("m");
  l.n = problem.dim("n");
  l.k = problem.dim("k");
  std::size_t next = 2;
  if (l.variant == MatmulVariant::forward && problem.dim("bias") != 0) l.bias = static_cast<int>(next++);
  if (is_fp8(problem.formats.at(0))) {
    l.scale_a = next++;
    l.scale_b = next++;
  }
  l.block = problem.dim_or("block", 0);
  l.c = next;
  return l;
}

Problem matmul_problem(MatmulVariant variant, const MatmulShape& shape, Format a, Format b, Format c, bool bias,
                       Format bias_format, bool accumulate, const MatmulScales& scales) {
  const bool forward = variant == MatmulVariant::forward;
  Problem problem{.kernel = "matmul",
                  .variant = variant_names()[static_cast<std::size_t>(variant)],
                  .shape = {{"m", shape.m}, {"n", shape.n}, {"k", shape.k}},
                  .formats = {a, b},
                  .accumulate = accumulate,
                  .constants = {}};
  if (forward) problem.shape.emplace_back("bias", bias ? 1 : 0);
  if (forward && bias) problem.formats.push_back(bias_format);
  if (is_fp8(a)) problem.formats.insert(problem.formats.end(), 2, scales.format);
  if (is_fp8(a) && scales.block > 0) problem.shape.emplace_back("block", scales.block);
  problem.formats.push_back(c);
  return problem;
}

Problem with_multiples(Problem problem, const std::array<std::int64_t, 3>& multiples) {
  static constexpr std::array<const char*, 3> kKeys = {"multiple_m", "multiple_n", "multiple_k"};
  if (!is_fp8(problem.formats.at(0))) return problem;
  for (std::size_t i = 0; i < kKeys.size(); ++i)
    if (multiples[i] > 1) problem.shape.emplace_back(kKeys[i], multiples[i]);
  return problem;
}

const Kernel& matmul_kernel() {
  static const MatmulKernel kernel;
  return kernel;
}

}  // namespace mixroof
