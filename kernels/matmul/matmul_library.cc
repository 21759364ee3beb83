#include "kernels/matmul/matmul_library.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>

#include "harness/numeric/codec.h"
#include "kernels/fill.h"
#include "kernels/matmul/matmul.h"

namespace mixroof {
namespace {

constexpr bool kIsSanitized = MIXROOF_SANITIZED;

/// Tails of every tile, more than one block, and enough work for all workers.
std::vector<Problem> trial_products(Format inputs, Format output) {
  const auto product = [&](MatmulVariant variant, const MatmulShape& shape, bool flag) {
    const bool bias = variant == MatmulVariant::forward && flag, accumulate = variant == MatmulVariant::wgrad && flag;
    return matmul_problem(variant, shape, inputs, inputs, output, bias, output, accumulate);
  };
  using enum MatmulVariant;
  return {product(forward, {1, 1, 1}, true),        product(forward, {67, 131, 300}, true),
          product(forward, {129, 255, 193}, false), product(dgrad, {5, 17, 7}, false),
          product(dgrad, {131, 193, 259}, false),   product(wgrad, {77, 65, 33}, true),
          product(wgrad, {193, 257, 65}, false),    product(wgrad, {257, 66, 129}, true)};
}

/// One product on fresh operands; a message when an element is off.
std::string try_product(const Problem& problem, const Plan& plan) {
  const Kernel& kernel = matmul_kernel();
  const std::vector<Operand> operands = kernel.operands(problem);
  std::vector<std::vector<double>> values(operands.size());
  std::vector<std::vector<std::byte>> stored(operands.size());
  std::vector<void*> pointers;
  std::vector<RefOperand> views;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const Operand& operand = operands[i];
    values[i] = fill_values(operand, operand_seed(1, problem, operand.name));
    stored[i].resize(static_cast<std::size_t>(operand.bytes()));
    encode(operand.format, values[i].data(), stored[i].data(), operand.count());
    decode(operand.format, stored[i].data(), values[i].data(), operand.count());
    pointers.push_back(stored[i].data());
    views.push_back({values[i].data(), nullptr, operand.count()});
  }
  std::vector<double> magnitudes(values.back().size()), got(values.back().size());
  views.back().magnitude = magnitudes.data();
  plan.run({.operands = pointers});
  decode(operands.back().format, pointers.back(), got.data(), operands.back().count());
  kernel.reference(problem, views);
  for (std::size_t e = 0; e < got.size(); ++e) {
    const double expected = values.back()[e];
    const double limit = kernel.limit(problem, operands.size() - 1, expected, magnitudes[e]);
    if (!(std::fabs(got[e] - expected) <= limit))  // NaN fails
      return fmt::format("{} {}: c[{}] is {}, expected {} within {:.2g}", problem.variant, problem.shape_text(), e,
                         got[e], expected, limit);
  }
  return "";
}

}  // namespace

Support verify_library(std::string_view library, MatmulPrepare prepare, const DeviceFacts& facts, Format inputs,
                       Format output) {
  if (kIsSanitized) return Support::no("not under sanitizers");
  try {
    for (const Problem& problem : trial_products(inputs, output))
      if (const std::string wrong = try_product(problem, *prepare(problem, {.facts = facts})); !wrong.empty())
        return Support::no(fmt::format("{} is wrong on this processor: {} (install a newer one)", library, wrong));
  } catch (const std::exception& error) {
    return Support::no(fmt::format("{} failed its trial: {}", library, error.what()));
  }
  return {};
}

}  // namespace mixroof
