#include "kernels/norm/norm.h"

#include <algorithm>
#include <cmath>

#include "harness/numeric/checked.h"
#include "harness/numeric/codec.h"
#include "kernels/case_dim.h"

namespace mixroof {
namespace {

constexpr double kDelta = 0x1p-24;  // unit roundoff of fp32
constexpr double kSum = 16;         // error of a sum in fp32, in kDelta times the sum of magnitudes
constexpr double kRowSums = 32;     // of a result made from such sums

bool is_backward(const Problem& p) { return p.variant == "backward"; }
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

Statistics statistics_of(const double* x, std::int64_t width, double eps) {
  double sum = 0, squares = 0;
  for (std::int64_t c = 0; c < width; ++c) sum += x[c];
  const double mean = sum / static_cast<double>(width);
  for (std::int64_t c = 0; c < width; ++c) squares += (x[c] - mean) * (x[c] - mean);
  return {mean, 1 / std::sqrt(squares / static_cast<double>(width) + eps)};
}

struct ForwardRefs {
  RefOperand x, weight, bias, y, mean, rstd;
};

void forward_row(const ForwardRefs& o, std::int64_t row, std::int64_t width, double eps) {
  const double* x = o.x.data + row * width;
  const auto [mean, rstd] = statistics_of(x, width, eps);
  const double m = magnitude_mean(x, width);
  const double shift = m * rstd;
  o.mean.data[row] = mean;
  o.rstd.data[row] = rstd;
  add_magnitude(o.mean, row, m);
  add_magnitude(o.rstd, row, rstd * (1 + 8 * kDelta * shift * shift));
  for (std::int64_t c = 0; c < width; ++c) {
    const double scaled = (x[c] - mean) * rstd * o.weight.data[c];
    o.y.data[row * width + c] = scaled + o.bias.data[c];
    add_magnitude(o.y, row * width + c,
                  std::fabs(o.weight.data[c]) * shift + std::fabs(scaled) * (1 + 16 * kDelta * shift * shift) +
                      std::fabs(o.bias.data[c]));
  }
}

struct BackwardRefs {
  RefOperand dy, x, weight, mean, rstd, dresidual, dx, dweight, dbias;  // dresidual.data null when absent
};

void backward_row(const BackwardRefs& o, std::int64_t row, std::int64_t width) {
  const double mean = o.mean.data[row], rstd = o.rstd.data[row];
  const double* x = o.x.data + row * width;
  const double* dy = o.dy.data + row * width;
  const auto n = static_cast<double>(width);
  double g_mean = 0, gx_mean = 0, g_size = 0, gx_size = 0;
  for (std::int64_t c = 0; c < width; ++c) {
    const double xhat = (x[c] - mean) * rstd, g = dy[c] * o.weight.data[c];
    g_mean += g / n;
    gx_mean += g * xhat / n;
    g_size += std::fabs(g) / n;
    gx_size += std::fabs(g * xhat) / n;
  }
  for (std::int64_t c = 0; c < width; ++c) {
    const std::int64_t i = row * width + c;
    const double xhat = (x[c] - mean) * rstd, g = dy[c] * o.weight.data[c];
    const double residual = o.dresidual.data ? o.dresidual.data[i] : 0;
    o.dx.data[i] = rstd * (g - g_mean - xhat * gx_mean) + residual;
    add_magnitude(o.dx, i, rstd * (std::fabs(g) + g_size + std::fabs(xhat) * gx_size) + std::fabs(residual));
    o.dweight.data[c] += dy[c] * xhat;
    o.dbias.data[c] += dy[c];
    add_magnitude(o.dweight, c, std::fabs(dy[c] * xhat));
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
  std::string_view summary() const override { return "layer norm over rows, and its gradients"; }

  std::vector<Operand> operands(const Problem& p) const override {
    return is_backward(p) ? backward_operands(p) : forward_operands(p);
  }

  Cost cost(const Problem& p) const override {
    Cost cost = compulsory_bytes(p);
    const std::int64_t rows = p.dim("rows"), width = p.dim("width");
    const std::int64_t elements = checked_product({rows, width});
    if (!is_backward(p)) {
      cost.add_flops(Format::fp32, checked_sum(checked_product({8, elements}), checked_product({5, rows})));
      return cost;
    }
    const std::int64_t per_element = has_residual(p) ? 14 : 13;
    cost.add_flops(Format::fp32, checked_sum(checked_product({per_element, elements}), checked_product({2, rows})));
    if (p.accumulate) cost.add_flops(Format::fp32, checked_product({2, width}));
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
    if (!is_backward(p)) {
      const ForwardRefs refs{o[0], o[1], o[2], o[3], o[4], o[5]};
      for (std::int64_t row = 0; row < rows; ++row) forward_row(refs, row, width, p.constant("eps"));
      return;
    }
    const std::size_t outputs = has_residual(p) ? 6 : 5;
    const BackwardRefs refs{o[0],       o[1],           o[2],
                            o[3],       o[4],           has_residual(p) ? o[5] : RefOperand{},
                            o[outputs], o[outputs + 1], o[outputs + 2]};
    start_column_sums(refs.dweight, p.accumulate);
    start_column_sums(refs.dbias, p.accumulate);
    for (std::int64_t row = 0; row < rows; ++row) backward_row(refs, row, width);
  }

  double limit(const Problem& p, std::size_t operand, double reference, double magnitude) const override {
    return growth(p, operand) * kDelta * magnitude + rounding_limit(p.formats[operand], reference);
  }

  void complete_inputs(const Problem& p, std::span<std::vector<double>> inputs) const override {
    if (!is_backward(p)) return;
    const std::int64_t width = p.dim("width");
    for (std::int64_t row = 0; row < p.dim("rows"); ++row) {
      const Statistics s = statistics_of(inputs[1].data() + row * width, width, p.constant("eps"));
      inputs[3][static_cast<std::size_t>(row)] = round_to(Format::fp32, s.mean);
      inputs[4][static_cast<std::size_t>(row)] = round_to(Format::fp32, s.rstd);
    }
  }

  std::vector<Case> cases() const override {
    std::vector<Case> cases;
    for (const std::int64_t width : {1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 769, 1025})
      for (const std::int64_t rows : {1, 3}) {
        cases.push_back({"forward", {{"rows", rows}, {"width", width}}});
        cases.push_back({"backward", backward_shape(rows, width, rows == 1, width % 2)});
      }
    for (const std::int64_t rows : {0, 2, 70}) {
      cases.push_back({"forward", {{"rows", rows}, {"width", 65}}});
      for (const bool flag : {false, true}) cases.push_back({"backward", backward_shape(rows, 65, flag, !flag)});
    }
    cases.push_back({"forward", {{"rows", 2}, {"width", 12288}}});
    cases.push_back({"backward", backward_shape(2, 12288, true, true)});
    return cases;
  }

  std::optional<Problem> problem(const Recipe& r, const Case& c) const override {
    expect_variant(name(), c, {"forward", "backward"});
    const std::int64_t rows = case_dim(name(), c, "rows"), width = case_dim(name(), c, "width");
    if (c.variant == "forward") return norm_forward_problem(rows, width, r.stream, r.params, r.stream, kEps);
    const bool residual = case_dim(name(), c, "residual", 1) != 0;
    const bool accumulate = case_dim(name(), c, "accumulate", 0) != 0;
    // Where the forward result is cast to a 16-bit format for its users, its gradient comes in that format.
    return norm_backward_problem(rows, width, r.between, r.stream, r.params, r.stream, r.grads, residual, accumulate,
                                 kEps);
  }

 private:
  static constexpr double kEps = 1e-5;

  static std::vector<std::pair<std::string, std::int64_t>> backward_shape(std::int64_t rows, std::int64_t width,
                                                                          bool residual, bool accumulate) {
    return {{"rows", rows}, {"width", width}, {"residual", residual}, {"accumulate", accumulate}};
  }

  static std::vector<Operand> forward_operands(const Problem& p) {
    const std::int64_t rows = p.dim("rows"), width = p.dim("width");
    return {{"x", Access::read, p.formats[0], {rows, width}, {.offset = 0.5}},
            {"weight", Access::read, p.formats[1], {width}, {.scale = 0.2, .offset = 1}},
            {"bias", Access::read, p.formats[2], {width}, {.scale = 0.5}},
            {"y", Access::write, p.formats[3], {rows, width}, {}},
            {"mean", Access::write, p.formats[4], {rows}, {}},
            {"rstd", Access::write, p.formats[5], {rows}, {}}};
  }

  static std::vector<Operand> backward_operands(const Problem& p) {
    const std::int64_t rows = p.dim("rows"), width = p.dim("width");
    const Access sums = p.accumulate ? Access::read_write : Access::write;
    std::vector<Operand> operands = {{"dy", Access::read, {}, {rows, width}, {}},
                                     {"x", Access::read, {}, {rows, width}, {.offset = 0.5}},
                                     {"weight", Access::read, {}, {width}, {.scale = 0.2, .offset = 1}},
                                     {"mean", Access::read, {}, {rows}, {}},
                                     {"rstd", Access::read, {}, {rows}, {.kind = Fill::Kind::positive, .offset = 0.5}}};
    if (has_residual(p)) operands.push_back({"dresidual", Access::read, {}, {rows, width}, {}});
    operands.push_back({"dx", Access::write, {}, {rows, width}, {}});
    operands.push_back({"dweight", sums, {}, {width}, {}});
    operands.push_back({"dbias", sums, {}, {width}, {}});
    for (std::size_t i = 0; i < operands.size(); ++i) operands[i].format = p.formats[i];
    return operands;
  }

  static double growth(const Problem& p, std::size_t operand) {
    if (!is_backward(p)) return operand == 3 ? kRowSums : kSum;
    const bool is_dx = operand == (has_residual(p) ? 6u : 5u);
    return is_dx ? kRowSums : 8 + std::sqrt(static_cast<double>(p.dim("rows")));
  }
};

void check_shape(std::int64_t rows, std::int64_t width) {
  at_least("norm", "rows", rows, 0);
  at_least("norm", "width", width, 1);
}

}  // namespace

Problem norm_forward_problem(std::int64_t rows, std::int64_t width, Format x, Format params, Format y, double eps) {
  check_shape(rows, width);
  return {.kernel = "norm",
          .variant = "forward",
          .shape = {{"rows", rows}, {"width", width}},
          .formats = {x, params, params, y, Format::fp32, Format::fp32},
          .constants = {{"eps", eps}}};
}

Problem norm_backward_problem(std::int64_t rows, std::int64_t width, Format dy, Format x, Format params, Format dx,
                              Format grads, bool residual, bool accumulate, double eps) {
  check_shape(rows, width);
  Problem problem{.kernel = "norm",
                  .variant = "backward",
                  .shape = {{"rows", rows}, {"width", width}, {"residual", residual}},
                  .formats = {dy, x, params, Format::fp32, Format::fp32},
                  .accumulate = accumulate,
                  .constants = {{"eps", eps}}};
  if (residual) problem.formats.push_back(dx);
  problem.formats.insert(problem.formats.end(), {dx, grads, grads});
  return problem;
}

const Kernel& norm_kernel() {
  static const NormKernel kernel;
  return kernel;
}

}  // namespace mixroof
