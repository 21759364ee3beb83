#include "kernels/norm/norm.h"

#include <algorithm>
#include <cmath>

#include "harness/numeric/checked.h"
#include "harness/numeric/codec.h"
#include "kernels/case_dim.h"
#include "kernels/norm/layout.h"

namespace mixroof {
namespace {

constexpr double kDelta = 0x1p-24;  // unit roundoff of fp32
constexpr double kSum = 16;         // error of a sum in fp32, in kDelta times the sum of magnitudes
constexpr double kRowSums = 32;     // of a result made from such sums

using norm_detail::BackwardOperands;
using norm_detail::ForwardOperands;
using norm_detail::is_backward;
using norm_detail::is_rms;
using norm_detail::kAbsent;

bool has_residual(const Problem& p) { return p.dim("residual") != 0; }

void add_magnitude(const RefOperand& operand, std::int64_t i, double value) {
  if (operand.magnitude) operand.magnitude[i] += value;
}

double magnitude_mean(const double* x, std::int64_t width) {
  double sum = 0;
  for (std::int64_t c = 0; c < width; ++c) sum += std::fabs(x[c]);
  return sum / static_cast<double>(width);
}

struct Statistics {
  double mean, rstd;
};

/// RMS norm is layer norm without centring: its mean is 0.
Statistics statistics_of(const double* x, std::int64_t width, double eps, bool centred) {
  double sum = 0, squares = 0;
  for (std::int64_t c = 0; centred && c < width; ++c) sum += x[c];
  const double mean = sum / static_cast<double>(width);
  for (std::int64_t c = 0; c < width; ++c) squares += (x[c] - mean) * (x[c] - mean);
  return {mean, 1 / std::sqrt(squares / static_cast<double>(width) + eps)};
}

/// data is null for operands that RMS norm does not have.
struct ForwardRefs {
  RefOperand x, weight, bias, y, mean, rstd;
};

void forward_row(const ForwardRefs& o, std::int64_t row, std::int64_t width, double eps) {
  const bool centred = o.mean.data != nullptr;
  const double* x = o.x.data + row * width;
  const auto [mean, rstd] = statistics_of(x, width, eps, centred);
  const double m = centred ? magnitude_mean(x, width) : 0;
  const double shift = m * rstd;
  if (centred) {
    o.mean.data[row] = mean;
    add_magnitude(o.mean, row, m);
  }
  o.rstd.data[row] = rstd;
  add_magnitude(o.rstd, row, rstd * (1 + 8 * kDelta * shift * shift));
  for (std::int64_t c = 0; c < width; ++c) {
    const double scaled = (x[c] - mean) * rstd * o.weight.data[c];
    const double bias = o.bias.data ? o.bias.data[c] : 0;
    o.y.data[row * width + c] = scaled + bias;
    add_magnitude(o.y, row * width + c,
                  std::fabs(o.weight.data[c]) * shift + std::fabs(scaled) * (1 + 16 * kDelta * shift * shift) +
                      std::fabs(bias));
  }
}

/// data is null for operands that are absent.
struct BackwardRefs {
  RefOperand dy, x, weight, mean, rstd, dresidual, dx, dweight, dbias;
};

/// Means over the row that dx subtracts, and those of the magnitudes. RMS norm does not subtract that of g.
struct GradientMeans {
  double g = 0, gx = 0, g_size = 0, gx_size = 0;
};

GradientMeans gradient_means(const double* dy, const double* x, const double* weight, double mean, double rstd,
                             bool centred, std::int64_t width) {
  GradientMeans means;
  const auto n = static_cast<double>(width);
  for (std::int64_t c = 0; c < width; ++c) {
    const double xhat = (x[c] - mean) * rstd, g = dy[c] * weight[c];
    means.gx += g * xhat / n;
    means.gx_size += std::fabs(g * xhat) / n;
    if (!centred) continue;
    means.g += g / n;
    means.g_size += std::fabs(g) / n;
  }
  return means;
}

void backward_row(const BackwardRefs& o, std::int64_t row, std::int64_t width) {
  const bool centred = o.mean.data != nullptr;
  const double mean = centred ? o.mean.data[row] : 0, rstd = o.rstd.data[row];
  const double* x = o.x.data + row * width;
  const double* dy = o.dy.data + row * width;
  const GradientMeans means = gradient_means(dy, x, o.weight.data, mean, rstd, centred, width);
  for (std::int64_t c = 0; c < width; ++c) {
    const std::int64_t i = row * width + c;
    const double xhat = (x[c] - mean) * rstd, g = dy[c] * o.weight.data[c];
    const double residual = o.dresidual.data ? o.dresidual.data[i] : 0;
    o.dx.data[i] = rstd * (g - means.g - xhat * means.gx) + residual;
    add_magnitude(o.dx, i,
                  rstd * (std::fabs(g) + means.g_size + std::fabs(xhat) * means.gx_size) + std::fabs(residual));
    o.dweight.data[c] += dy[c] * xhat;
    add_magnitude(o.dweight, c, std::fabs(dy[c] * xhat));
    if (!o.dbias.data) continue;
    o.dbias.data[c] += dy[c];
    add_magnitude(o.dbias, c, std::fabs(dy[c]));
  }
}

/// Before the rows are added: what accumulates counts as a term, what does not starts from zero.
void start_column_sums(const RefOperand& sums, bool accumulate) {
  for (std::int64_t c = 0; c < sums.count; ++c) {
    if (!accumulate) sums.data[c] = 0;
    if (sums.magnitude) sums.magnitude[c] = std::fabs(sums.data[c]);
  }
}

class NormKernel final : public Kernel {
 public:
  std::string_view name() const override { return "norm"; }
  std::string_view summary() const override { return "layer norm and RMS norm over rows, and their gradients"; }

  std::vector<Operand> operands(const Problem& p) const override {
    return is_backward(p) ? backward_operands(p) : forward_operands(p);
  }

  Cost cost(const Problem& p) const override {
    Cost cost = compulsory_bytes(p);
    const std::int64_t rows = p.dim("rows"), width = p.dim("width");
    const std::int64_t elements = checked_product({rows, width});
    const bool rms = is_rms(p);
    if (!is_backward(p)) {
      cost.add_flops(Format::fp32, checked_sum(checked_product({rms ? 4 : 8, elements}),
                                               checked_product({rms ? 4 : 5, rows})));
      return cost;
    }
    const std::int64_t per_element = (rms ? 9 : 13) + (has_residual(p) ? 1 : 0), per_column = rms ? 1 : 2;
    cost.add_flops(Format::fp32, checked_sum(checked_product({per_element, elements}),
                                             checked_product({rms ? 1 : 2, rows})));
    if (p.accumulate) cost.add_flops(Format::fp32, checked_product({per_column, width}));
    return cost;
  }

  std::int64_t workspace_bytes(const Problem& p, const Target& target) const override {
    const std::int64_t rows = is_backward(p) ? norm_detail::kBackwardRows : norm_detail::kForwardRows;
    return checked_product({target.threads, rows, norm_detail::row_stride(p.dim("width")), 4});
  }

  void reference(const Problem& p, std::span<const RefOperand> o) const override {
    const std::int64_t rows = p.dim("rows"), width = p.dim("width");
    for (const RefOperand& operand : o)
      if (operand.magnitude) std::fill_n(operand.magnitude, operand.count, 0.0);
    const auto operand = [&](std::size_t i) { return i == kAbsent ? RefOperand{} : o[i]; };
    if (!is_backward(p)) {
      const ForwardOperands at(p);
      const ForwardRefs refs{operand(at.x), operand(at.weight), operand(at.bias),
                             operand(at.y), operand(at.mean),   operand(at.rstd)};
      for (std::int64_t row = 0; row < rows; ++row) forward_row(refs, row, width, p.constant("eps"));
      return;
    }
    const BackwardOperands at(p);
    const BackwardRefs refs{operand(at.dy),   operand(at.x),         operand(at.weight),
                            operand(at.mean), operand(at.rstd),      operand(at.dresidual),
                            operand(at.dx),   operand(at.dweight),   operand(at.dbias)};
    start_column_sums(refs.dweight, p.accumulate);
    start_column_sums(refs.dbias, p.accumulate);
    for (std::int64_t row = 0; row < rows; ++row) backward_row(refs, row, width);
  }

  double limit(const Problem& p, std::size_t operand, double reference, double magnitude) const override {
    return growth(p, operand) * kDelta * magnitude + rounding_limit(p.formats[operand], reference);
  }

  void complete_inputs(const Problem& p, std::span<std::vector<double>> inputs) const override {
    if (!is_backward(p)) return;
    const BackwardOperands at(p);
    const std::int64_t width = p.dim("width");
    for (std::int64_t row = 0; row < p.dim("rows"); ++row) {
      const Statistics s = statistics_of(inputs[at.x].data() + row * width, width, p.constant("eps"), !is_rms(p));
      if (at.mean != kAbsent) inputs[at.mean][static_cast<std::size_t>(row)] = round_to(Format::fp32, s.mean);
      inputs[at.rstd][static_cast<std::size_t>(row)] = round_to(Format::fp32, s.rstd);
    }
  }

  std::vector<Case> cases() const override {
    std::vector<Case> cases;
    for (const std::string prefix : {"", "rms_"}) {
      const auto add_forward = [&](std::int64_t rows, std::int64_t width) {
        cases.push_back({prefix + "forward", {{"rows", rows}, {"width", width}}});
      };
      const auto add_backward = [&](std::int64_t rows, std::int64_t width, bool residual, bool accumulate) {
        cases.push_back(
            {prefix + "backward",
             {{"rows", rows}, {"width", width}, {"residual", residual}, {"accumulate", accumulate}}});
      };
      for (const std::int64_t width : {1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 769, 1025})
        for (const std::int64_t rows : {1, 3}) {
          add_forward(rows, width);
          add_backward(rows, width, rows == 1, width % 2 != 0);
        }
      for (const std::int64_t rows : {0, 2, 70}) {
        add_forward(rows, 65);
        for (const bool flag : {false, true}) add_backward(rows, 65, flag, !flag);
      }
      add_forward(2, 12288);
      add_backward(2, 12288, true, true);
    }
    return cases;
  }

  std::optional<Problem> problem(const Recipe& r, const Case& c) const override {
    expect_variant(name(), c, {"forward", "backward", "rms_forward", "rms_backward"});
    const std::int64_t rows = case_dim(name(), c, "rows"), width = case_dim(name(), c, "width");
    const bool rms = c.variant.starts_with("rms_");
    if (c.variant.ends_with("forward")) {
      const auto forward = rms ? rms_norm_forward_problem : norm_forward_problem;
      return forward(rows, width, r.stream, r.params, r.stream, kEps);
    }
    const bool residual = case_dim(name(), c, "residual", 1) != 0;
    const bool accumulate = case_dim(name(), c, "accumulate", 0) != 0;
    const auto backward = rms ? rms_norm_backward_problem : norm_backward_problem;
    // Where the forward result is cast to a 16-bit format for its users, its gradient comes in that format.
    return backward(rows, width, r.between, r.stream, r.params, r.stream, r.grads, residual, accumulate, kEps);
  }

 private:
  static constexpr double kEps = 1e-5;

  static std::vector<Operand> with_formats(std::vector<Operand> operands, const Problem& p) {
    for (std::size_t i = 0; i < operands.size(); ++i) operands[i].format = p.formats[i];
    return operands;
  }

  static std::vector<Operand> forward_operands(const Problem& p) {
    const std::int64_t rows = p.dim("rows"), width = p.dim("width");
    std::vector<Operand> operands = {{"x", Access::read, {}, {rows, width}, {.offset = 0.5}},
                                     {"weight", Access::read, {}, {width}, {.scale = 0.2, .offset = 1}}};
    if (!is_rms(p)) operands.push_back({"bias", Access::read, {}, {width}, {.scale = 0.5}});
    operands.push_back({"y", Access::write, {}, {rows, width}, {}});
    if (!is_rms(p)) operands.push_back({"mean", Access::write, {}, {rows}, {}});
    operands.push_back({"rstd", Access::write, {}, {rows}, {}});
    return with_formats(std::move(operands), p);
  }

  static std::vector<Operand> backward_operands(const Problem& p) {
    const std::int64_t rows = p.dim("rows"), width = p.dim("width");
    const Access sums = p.accumulate ? Access::read_write : Access::write;
    std::vector<Operand> operands = {{"dy", Access::read, {}, {rows, width}, {}},
                                     {"x", Access::read, {}, {rows, width}, {.offset = 0.5}},
                                     {"weight", Access::read, {}, {width}, {.scale = 0.2, .offset = 1}}};
    if (!is_rms(p)) operands.push_back({"mean", Access::read, {}, {rows}, {}});
    operands.push_back({"rstd", Access::read, {}, {rows}, {.kind = Fill::Kind::positive, .offset = 0.5}});
    if (has_residual(p)) operands.push_back({"dresidual", Access::read, {}, {rows, width}, {}});
    operands.push_back({"dx", Access::write, {}, {rows, width}, {}});
    operands.push_back({"dweight", sums, {}, {width}, {}});
    if (!is_rms(p)) operands.push_back({"dbias", sums, {}, {width}, {}});
    return with_formats(std::move(operands), p);
  }

  static double growth(const Problem& p, std::size_t operand) {
    if (!is_backward(p)) return operand == ForwardOperands(p).y ? kRowSums : kSum;
    const bool is_dx = operand == BackwardOperands(p).dx;
    return is_dx ? kRowSums : 8 + std::sqrt(static_cast<double>(p.dim("rows")));
  }
};

void check_shape(std::int64_t rows, std::int64_t width) {
  at_least("norm", "rows", rows, 0);
  at_least("norm", "width", width, 1);
}

Problem forward_problem(bool rms, std::int64_t rows, std::int64_t width, Format x, Format params, Format y,
                        double eps) {
  check_shape(rows, width);
  Problem problem{.kernel = "norm",
                  .variant = rms ? "rms_forward" : "forward",
                  .shape = {{"rows", rows}, {"width", width}},
                  .formats = {x, params, params, y, Format::fp32, Format::fp32},
                  .constants = {{"eps", eps}}};
  if (rms) problem.formats = {x, params, y, Format::fp32};
  return problem;
}

struct BackwardFormats {
  Format dy, x, params, dx, grads;
};

Problem backward_problem(bool rms, std::int64_t rows, std::int64_t width, const BackwardFormats& f, bool residual,
                         bool accumulate, double eps) {
  check_shape(rows, width);
  Problem problem{.kernel = "norm",
                  .variant = rms ? "rms_backward" : "backward",
                  .shape = {{"rows", rows}, {"width", width}, {"residual", residual}},
                  .formats = {f.dy, f.x, f.params, Format::fp32},
                  .accumulate = accumulate,
                  .constants = {{"eps", eps}}};
  if (!rms) problem.formats.push_back(Format::fp32);
  if (residual) problem.formats.push_back(f.dx);
  problem.formats.insert(problem.formats.end(), {f.dx, f.grads});
  if (!rms) problem.formats.push_back(f.grads);
  return problem;
}

}  // namespace

Problem norm_forward_problem(std::int64_t rows, std::int64_t width, Format x, Format params, Format y, double eps) {
  return forward_problem(false, rows, width, x, params, y, eps);
}

Problem norm_backward_problem(std::int64_t rows, std::int64_t width, Format dy, Format x, Format params, Format dx,
                              Format grads, bool residual, bool accumulate, double eps) {
  return backward_problem(false, rows, width, {dy, x, params, dx, grads}, residual, accumulate, eps);
}

Problem rms_norm_forward_problem(std::int64_t rows, std::int64_t width, Format x, Format params, Format y, double eps) {
  return forward_problem(true, rows, width, x, params, y, eps);
}

Problem rms_norm_backward_problem(std::int64_t rows, std::int64_t width, Format dy, Format x, Format params, Format dx,
                                  Format grads, bool residual, bool accumulate, double eps) {
  return backward_problem(true, rows, width, {dy, x, params, dx, grads}, residual, accumulate, eps);
}

const Kernel& norm_kernel() {
  static const NormKernel kernel;
  return kernel;
}

}  // namespace mixroof
