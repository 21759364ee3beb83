#include "kernels/embedding/embedding.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "harness/numeric/checked.h"
#include "kernels/case_dim.h"
#include "kernels/embedding/layout.h"

namespace mixroof {
namespace {

constexpr double kDelta = 0x1p-24;  // unit roundoff of fp32

using Layout = EmbeddingLayout;

bool is_forward(const Problem& p) { return p.variant == "forward"; }

Operand ids_operand(const char* name, const Layout& s, std::int64_t limit) {
  return {name, Access::read, Format::int32, {s.tokens}, {.kind = Fill::Kind::tokens, .limit = limit}};
}

std::vector<Operand> forward_operands(const Layout& s) {
  // Sums of whole numbers up to 64 are exact in bf16 (whole up to 256).
  const Fill table{.exact_limit = 64};
  std::vector<Operand> operands = {ids_operand("tokens", s, s.vocab)};
  if (s.packed) operands.push_back(ids_operand("position_ids", s, s.context));
  operands.push_back({"table", Access::read, {}, {s.vocab, s.width}, table});
  if (s.has_positions()) operands.push_back({"positions", Access::read, {}, {s.context, s.width}, table});
  operands.push_back({"out", Access::write, {}, {s.tokens, s.width}, {}});
  return operands;
}

std::vector<Operand> backward_operands(const Layout& s) {
  // Sums of millions of whole numbers up to 8 stay exact in fp32 and are then rounded once, as the reference is.
  const Fill whole{.exact_limit = 8};
  const auto written = [](bool adds) { return adds ? Access::read_write : Access::write; };
  std::vector<Operand> operands = {{"dout", Access::read, {}, {s.tokens, s.width}, whole},
                                   ids_operand("tokens", s, s.vocab)};
  if (s.packed) operands.push_back(ids_operand("position_ids", s, s.context));
  operands.push_back({"dtable", written(s.adds_to_table), {}, {s.vocab, s.width}, whole});
  if (s.has_positions())
    operands.push_back({"dpositions", written(s.adds_to_positions), {}, {s.context, s.width}, whole});
  return operands;
}

std::int64_t ids_bytes(const Layout& s) {
  return checked_product({s.packed ? 2 : 1, s.tokens, bytes_of(Format::int32)});
}

Cost forward_cost(const Problem& p) {
  const Layout s(p);
  Cost cost;
  const auto bytes = [&](std::int64_t rows, std::size_t operand) {
    return checked_product({rows, s.width, bytes_of(p.formats[operand])});
  };
  cost.bytes_read = checked_sum(ids_bytes(s), bytes(s.most_table_rows(), s.table()));
  cost.bytes_written = bytes(s.tokens, s.out());
  if (!s.has_positions()) return cost;
  cost.add_flops(Format::fp32, checked_product({s.tokens, s.width}));
  cost.bytes_read = checked_sum(cost.bytes_read, bytes(s.most_position_rows(), s.positions()));
  return cost;
}

Cost backward_cost(const Problem& p) {
  const Layout s(p);
  Cost cost;
  const std::int64_t dout = checked_product({s.tokens, s.width, bytes_of(p.formats[Layout::dout()])});
  cost.bytes_read = checked_sum(dout, ids_bytes(s));
  const auto add_gradient = [&](bool adds, std::int64_t touched, std::int64_t rows, std::size_t operand) {
    const std::int64_t written = checked_product({adds ? touched : rows, s.width, bytes_of(p.formats[operand])});
    cost.bytes_written = checked_sum(cost.bytes_written, written);
    if (adds) cost.bytes_read = checked_sum(cost.bytes_read, written);
    cost.add_flops(Format::fp32, checked_product({s.tokens, s.width}));
  };
  add_gradient(s.adds_to_table, s.most_table_rows(), s.vocab, s.table());
  if (s.has_positions()) add_gradient(s.adds_to_positions, s.most_position_rows(), s.context, s.positions());
  return cost;
}

/// Row of the position table that place i takes.
std::int64_t position_row(const Layout& s, std::span<const RefOperand> o, std::int64_t i) {
  return s.packed ? static_cast<std::int64_t>(o[s.position_ids()].data[i]) : i % s.seq;
}

void forward_reference(const Layout& s, std::span<const RefOperand> o) {
  for (std::int64_t i = 0; i < s.tokens; ++i) {
    const double* row = o[s.table()].data + static_cast<std::int64_t>(o[s.ids()].data[i]) * s.width;
    double* out = o[s.out()].data + i * s.width;
    std::copy_n(row, s.width, out);
    if (!s.has_positions()) continue;
    const double* position = o[s.positions()].data + position_row(s, o, i) * s.width;
    for (std::int64_t c = 0; c < s.width; ++c) out[c] += position[c];
  }
}

/// Adds the rows of dout to the rows of `sum` that row_of(i) names. Magnitude: terms of an element × Σ |term|.
template <typename RowOf>
void add_rows_reference(const Layout& s, const double* dout, bool adds, const RefOperand& sum, RowOf row_of) {
  if (!adds) std::fill_n(sum.data, sum.count, 0.0);
  std::vector<double> terms(static_cast<std::size_t>(s.width == 0 ? 0 : sum.count / s.width), 0.0);
  if (sum.magnitude)
    for (std::int64_t e = 0; e < sum.count; ++e) sum.magnitude[e] = std::fabs(sum.data[e]);
  for (std::int64_t i = 0; i < s.tokens; ++i) {
    const std::int64_t row = row_of(i);
    ++terms[static_cast<std::size_t>(row)];
    for (std::int64_t c = 0; c < s.width; ++c) {
      sum.data[row * s.width + c] += dout[i * s.width + c];
      if (sum.magnitude) sum.magnitude[row * s.width + c] += std::fabs(dout[i * s.width + c]);
    }
  }
  if (sum.magnitude)
    for (std::int64_t e = 0; e < sum.count; ++e) sum.magnitude[e] *= terms[static_cast<std::size_t>(e / s.width)];
}

class EmbeddingKernel final : public Kernel {
 public:
  std::string_view name() const override { return "embedding"; }
  std::string_view summary() const override { return "token plus position embedding and its gradients"; }

  std::vector<Operand> operands(const Problem& p) const override {
    const Layout s(p);
    std::vector<Operand> operands = s.is_forward ? forward_operands(s) : backward_operands(s);
    for (std::size_t i = 0; i < operands.size(); ++i) operands[i].format = p.formats[i];
    return operands;
  }

  Cost cost(const Problem& p) const override { return is_forward(p) ? forward_cost(p) : backward_cost(p); }

  // Backward on the CPU: first and next occurrence of each token, when packed also of each position, all int32.
  std::int64_t workspace_bytes(const Problem& p, const Target& target) const override {
    if (is_forward(p) || target.backend != "cpu") return 0;
    const Layout s(p);
    std::int64_t entries = checked_sum(s.vocab, s.tokens);
    if (s.packed) entries = checked_sum(entries, checked_sum(s.context, s.tokens));
    return checked_product({entries, bytes_of(Format::int32)});
  }

  void reference(const Problem& p, std::span<const RefOperand> o) const override {
    const Layout s(p);
    if (s.is_forward) return forward_reference(s, o);
    const double* tokens = o[s.ids()].data;
    const double* dout = o[Layout::dout()].data;
    add_rows_reference(s, dout, s.adds_to_table, o[s.table()],
                       [&](std::int64_t i) { return static_cast<std::int64_t>(tokens[i]); });
    if (s.has_positions())
      add_rows_reference(s, dout, s.adds_to_positions, o[s.positions()],
                         [&](std::int64_t i) { return position_row(s, o, i); });
  }

  // Forward: one addition in fp32, one rounding. Backward: n terms take at most n additions, each rounding to within
  // kDelta · Σ|term|, then one rounding; the magnitude is n · Σ|term|.
  double limit(const Problem& p, std::size_t operand, double reference, double magnitude) const override {
    const double once = rounding_limit(p.formats[operand], reference);
    if (is_forward(p)) return rounding_limit(Format::fp32, reference) + once;
    return kDelta * magnitude + once * (1 + kDelta) + kDelta * std::fabs(reference);
  }

  std::vector<Case> cases() const override {
    std::vector<Case> cases;
    const auto add = [&](const EmbeddingShape& s, std::initializer_list<std::pair<int, int>> tied_and_accumulate) {
      const std::vector<std::pair<std::string, std::int64_t>> shape = shape_of(s);
      cases.push_back({"forward", shape});
      for (const auto& [tied, accumulate] : tied_and_accumulate) {
        cases.push_back({"backward", shape});
        cases.back().shape.insert(cases.back().shape.end(), {{"tied", tied}, {"accumulate", accumulate}});
      }
    };
    const auto all_flags = {std::pair{0, 0}, {0, 1}, {1, 0}, {1, 1}};
    for (const std::int64_t width : {1, 7, 8, 15, 16, 17, 31, 63, 64, 65, 769})
      add({.batch = 2, .seq = 9, .vocab = 13, .context = 11, .width = width}, {{width % 2, 0}});
    add({.batch = 2, .seq = 9, .vocab = 13, .context = 11, .width = 33}, all_flags);
    add({.batch = 3, .seq = 40, .vocab = 2, .context = 40, .width = 24}, all_flags);         // long sums
    add({.batch = 1, .seq = 5, .vocab = 300, .context = 5, .width = 10}, {{0, 0}, {1, 1}});  // mostly absent ids
    add({.batch = 2, .seq = 3, .vocab = 7, .context = 4, .width = 2100}, {{0, 0}, {1, 1}});  // several chunks of a row
    add({.batch = 1, .seq = 5, .vocab = 50257, .context = 5, .width = 2}, {{0, 0}});
    add({.batch = 0, .seq = 4, .vocab = 3, .context = 6, .width = 5}, all_flags);
    for (const bool packed : {false, true})  // no position table
      add({.batch = 2, .seq = 9, .vocab = 13, .context = 0, .width = 33, .packed = packed}, all_flags);
    add({.batch = 2, .seq = 9, .vocab = 13, .context = 11, .width = 33, .packed = true}, all_flags);
    add({.batch = 2, .seq = 30, .vocab = 5, .context = 3, .width = 130, .packed = true}, all_flags);  // long sums
    add({.batch = 1, .seq = 4, .vocab = 5, .context = 900, .width = 16, .packed = true}, {{1, 0}, {1, 1}});
    add({.batch = 0, .seq = 4, .vocab = 3, .context = 6, .width = 5, .packed = true}, all_flags);
    return cases;
  }

  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    expect_variant(name(), c, {"forward", "backward"});
    const auto dim = [&](const char* key) { return case_dim(name(), c, key); };
    const EmbeddingShape shape{.batch = dim("batch"),
                               .seq = dim("seq"),
                               .vocab = dim("vocab"),
                               .context = case_dim(name(), c, "context", dim("seq")),
                               .width = dim("width"),
                               .packed = case_dim(name(), c, "packed", 0) != 0};
    if (c.variant == "forward") return embedding_forward_problem(shape, recipe.params, recipe.stream);
    return embedding_backward_problem(shape, recipe.stream, recipe.grads, case_dim(name(), c, "tied", 1) != 0,
                                      case_dim(name(), c, "accumulate", 0) != 0);
  }

  /// Position ids are of no use without a position table.
  static std::vector<std::pair<std::string, std::int64_t>> shape_of(const EmbeddingShape& s) {
    std::vector<std::pair<std::string, std::int64_t>> shape = {
        {"batch", s.batch}, {"seq", s.seq}, {"vocab", s.vocab}, {"context", s.context}, {"width", s.width}};
    if (s.packed && s.context > 0) shape.emplace_back("packed", 1);
    return shape;
  }
};

Problem shaped(std::string variant, const EmbeddingShape& s) {
  at_least("embedding", "batch", s.batch, 0);
  at_least("embedding", "seq", s.seq, 1);
  at_least("embedding", "vocab", s.vocab, 1);
  at_least("embedding", "context", s.context, s.packed || s.context == 0 ? 0 : s.seq);
  at_least("embedding", "width", s.width, 1);
  return {.kernel = "embedding",
          .variant = std::move(variant),
          .shape = EmbeddingKernel::shape_of(s),
          .formats = {},
          .constants = {}};
}

/// The ids' formats, then those of the tables.
std::vector<Format> with_ids(const Problem& problem, std::vector<Format> formats, Format table) {
  const Layout s(problem);
  formats.push_back(Format::int32);
  if (s.packed) formats.push_back(Format::int32);
  formats.push_back(table);
  if (s.has_positions()) formats.push_back(table);
  return formats;
}

}  // namespace

Problem embedding_forward_problem(const EmbeddingShape& shape, Format params, Format out) {
  Problem problem = shaped("forward", shape);
  problem.formats = with_ids(problem, {}, params);
  problem.formats.push_back(out);
  return problem;
}

Problem embedding_backward_problem(const EmbeddingShape& shape, Format dout, Format grads, bool tied, bool accumulate) {
  Problem problem = shaped("backward", shape);
  problem.shape.emplace_back("tied", tied ? 1 : 0);
  problem.formats = with_ids(problem, {dout}, grads);
  problem.accumulate = accumulate;
  return problem;
}

const Kernel& embedding_kernel() {
  static const EmbeddingKernel kernel;
  return kernel;
}

}  // namespace mixroof
