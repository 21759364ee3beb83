#include "kernels/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/numeric/checked.h"
#include "kernels/case_dim.h"
#include "kernels/control.h"
#include "kernels/control_operand.h"

namespace mixroof {
namespace {

constexpr double kDelta = 0x1p-24;  // unit roundoff of fp32
constexpr double kConstant = 16;
constexpr double kSubnormalExponential = 0x1p-149 / (kConstant * kDelta);  // in units of the limit's constant

/// Softmax of one row: maximum, sum of e^(x-m), and the mean distance from the maximum that errors grow with.
struct RowStatistics {
  RowStatistics(const double* x, std::int64_t vocab) : maximum(*std::max_element(x, x + vocab)) {
    for (std::int64_t j = 0; j < vocab; ++j) {
      const double e = std::exp(x[j] - maximum);
      sum += e;
      if (e > 0) distance += e * (maximum - x[j]);
      // x · 0 is NaN for every value that is not finite, also those that the maximum or the exponential would hide.
      sum += x[j] * 0;
    }
    distance /= sum;
  }
  double maximum, sum = 0, distance = 0;
};

class CrossEntropyKernel final : public Kernel {
 public:
  std::string_view name() const override { return "cross_entropy"; }
  std::string_view summary() const override { return "softmax, cross entropy and its gradient, in place"; }

  std::vector<Operand> operands(const Problem& p) const override {
    const std::int64_t rows = p.dim("rows"), vocab = p.dim("vocab");
    return {{"logits", Access::read_write, p.formats[0], {rows, vocab}, {.scale = 3}},
            {"targets", Access::read, p.formats[1], {rows}, {.kind = Fill::Kind::targets, .limit = vocab}},
            {"losses", Access::write, p.formats[2], {rows}, {}},
            control_operand()};
  }

  Cost cost(const Problem& p) const override {
    Cost cost = compulsory_bytes(p);
    const std::int64_t per_row = checked_sum(checked_product({4, p.dim("vocab")}), 5);
    cost.add_flops(Format::fp32, checked_product({p.dim("rows"), per_row}));
    return cost;
  }

  void reference(const Problem& p, std::span<const RefOperand> o) const override {
    const std::int64_t rows = p.dim("rows"), vocab = p.dim("vocab");
    const double effective = slot(o[3].data, Slot::effective_tokens);
    const double factor = effective > 0 ? slot(o[3].data, Slot::loss_scale) / effective : 0.0;
    double loss_sum = p.accumulate ? slot(o[3].data, Slot::loss_sum) : 0.0;
    double loss_sum_magnitude = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto target = static_cast<std::int64_t>(o[1].data[r]);
      reference_row(vocab, target, factor, r, o[0], o[2]);
      loss_sum += o[2].data[r];
      if (o[2].magnitude) loss_sum_magnitude += o[2].magnitude[r] + std::fabs(o[2].data[r]);
    }
    slot(o[3].data, Slot::loss_sum) = loss_sum;
    if (o[3].magnitude) {
      std::fill_n(o[3].magnitude, o[3].count, 0.0);
      slot(o[3].magnitude, Slot::loss_sum) = loss_sum_magnitude;
    }
  }

  double limit(const Problem& p, std::size_t operand, double reference, double magnitude) const override {
    const double computed = kConstant * kDelta * magnitude;
    // Of the control tensor only loss_sum is written; all other slots have magnitude 0 and stay as they are.
    return operand == 3 ? computed : computed + rounding_limit(p.formats[operand], reference);
  }

  std::vector<Case> cases() const override {
    std::vector<Case> cases;
    const auto add = [&](std::int64_t rows, std::int64_t vocab, std::int64_t accumulate) {
      cases.push_back({"fused", {{"rows", rows}, {"vocab", vocab}, {"accumulate", accumulate}}});
    };
    for (const std::int64_t vocab :
         {1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 257, 769, 1000, 1023, 1024, 1025, 3001})
      add(9, vocab, vocab % 2);
    add(0, 17, 0);
    add(0, 17, 1);
    add(1, 33, 1);
    add(70, 61, 0);
    add(2, 50257, 1);
    return cases;
  }

  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    expect_variant(name(), c, {"fused"});
    return cross_entropy_problem(case_dim(name(), c, "rows"), case_dim(name(), c, "vocab"), recipe.between,
                                 case_dim(name(), c, "accumulate", 0) != 0);
  }

 private:
  static void reference_row(std::int64_t vocab, std::int64_t target, double factor, std::int64_t r,
                            const RefOperand& logits, const RefOperand& losses) {
    double* x = logits.data + r * vocab;
    double* magnitude = logits.magnitude ? logits.magnitude + r * vocab : nullptr;
    if (target < 0) {
      std::fill_n(x, vocab, 0.0);
      if (magnitude) std::fill_n(magnitude, vocab, 0.0);
      losses.data[r] = 0;
      if (losses.magnitude) losses.magnitude[r] = 0;
      return;
    }
    const RowStatistics row(x, vocab);
    losses.data[r] = row.maximum + std::log(row.sum) - x[target];
    if (losses.magnitude) losses.magnitude[r] = 1 + row.distance;
    for (std::int64_t j = 0; j < vocab; ++j) {
      const double below = row.maximum - x[j];
      const double p = std::exp(-below) / row.sum;
      if (magnitude) {
        const double condition = p > 0 ? p * (1 + below + row.distance) : 0.0;
        magnitude[j] = factor * (condition + (j == target ? 1 + row.distance : 0) + kSubnormalExponential);
      }
      x[j] = (p - (j == target ? 1 : 0)) * factor;
    }
  }
};

}  // namespace

Problem cross_entropy_problem(std::int64_t rows, std::int64_t vocab, Format logits, bool accumulate) {
  at_least("cross_entropy", "rows", rows, 0);
  at_least("cross_entropy", "vocab", vocab, 1);
  return {.kernel = "cross_entropy",
          .variant = "fused",
          .shape = {{"rows", rows}, {"vocab", vocab}},
          .formats = {logits, Format::int32, Format::fp32, Format::fp64},
          .accumulate = accumulate,
          .constants = {}};
}

const Kernel& cross_entropy_kernel() {
  static const CrossEntropyKernel kernel;
  return kernel;
}

}  // namespace mixroof
