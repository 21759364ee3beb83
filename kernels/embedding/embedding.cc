#include "kernels/embedding/embedding.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "harness/numeric/checked.h"
#include "kernels/case_dim.h"

namespace mixroof {
namespace {

constexpr double kDelta = 0x1p-24;  // unit roundoff of fp32

struct Shape {
  explicit Shape(const Problem& p)
      : seq(p.dim("seq")),
        vocab(p.dim("vocab")),
        context(p.dim("context")),
        width(p.dim("width")),
        tokens(checked_product({p.dim("batch"), seq})) {}

  /// Rows of the table that `tokens` ids can name, and rows of the position table that are used.
  std::int64_t most_table_rows() const { return std::min(tokens, vocab); }
  std::int64_t position_rows() const { return tokens == 0 ? 0 : seq; }

  std::int64_t seq, vocab, context, width, tokens;
};

bool is_forward(const Problem& p) { return p.variant == "forward"; }
bool adds_to_table(const Problem& p) { return p.dim("tied") != 0 || p.accumulate; }

std::vector<Operand> forward_operands(const Problem& p) {
  const Shape s(p);
  // Sums of whole numbers up to 64 are exact in bf16 (whole up to 256).
  const Fill table{.exact_limit = 64};
  return {{"tokens", Access::read, p.formats[0], {s.tokens}, {.kind = Fill::Kind::tokens, .limit = s.vocab}},
          {"table", Access::read, p.formats[1], {s.vocab, s.width}, table},
          {"positions", Access::read, p.formats[2], {s.context, s.width}, table},
          {"out", Access::write, p.formats[3], {s.tokens, s.width}, {}}};
}

std::vector<Operand> backward_operands(const Problem& p) {
  const Shape s(p);
  // Sums of millions of whole numbers up to 8 stay exact in fp32 and are then rounded once, as the reference is.
  const Fill whole{.exact_limit = 8};
  const Access table = adds_to_table(p) ? Access::read_write : Access::write;
  const Access positions = p.accumulate ? Access::read_write : Access::write;
  return {{"dout", Access::read, p.formats[0], {s.tokens, s.width}, whole},
          {"tokens", Access::read, p.formats[1], {s.tokens}, {.kind = Fill::Kind::tokens, .limit = s.vocab}},
          {"dtable", table, p.formats[2], {s.vocab, s.width}, whole},
          {"dpositions", positions, p.formats[3], {s.context, s.width}, whole}};
}

Cost forward_cost(const Problem& p) {
  const Shape s(p);
  Cost cost;
  cost.add_flops(Format::fp32, checked_product({s.tokens, s.width}));
  const std::int64_t ids = checked_product({s.tokens, bytes_of(p.formats[0])});
  const std::int64_t table = checked_product({s.most_table_rows(), s.width, bytes_of(p.formats[1])});
  const std::int64_t positions = checked_product({s.position_rows(), s.width, bytes_of(p.formats[2])});
  cost.bytes_read = checked_sum(ids, checked_sum(table, positions));
  cost.bytes_written = checked_product({s.tokens, s.width, bytes_of(p.formats[3])});
  return cost;
}

Cost backward_cost(const Problem& p) {
  const Shape s(p);
  Cost cost;
  cost.add_flops(Format::fp32, checked_product({2, s.tokens, s.width}));
  const std::int64_t dout = checked_product({s.tokens, s.width, bytes_of(p.formats[0])});
  cost.bytes_read = checked_sum(dout, checked_product({s.tokens, bytes_of(p.formats[1])}));
  const auto add_gradient = [&](bool adds, std::int64_t touched, std::int64_t rows, Format format) {
    const std::int64_t written = checked_product({adds ? touched : rows, s.width, bytes_of(format)});
    cost.bytes_written = checked_sum(cost.bytes_written, written);
    if (adds) cost.bytes_read = checked_sum(cost.bytes_read, written);
  };
  add_gradient(adds_to_table(p), s.most_table_rows(), s.vocab, p.formats[2]);
  add_gradient(p.accumulate, s.position_rows(), s.context, p.formats[3]);
  return cost;
}

void forward_reference(const Problem& p, std::span<const RefOperand> o) {
  const Shape s(p);
  for (std::int64_t i = 0; i < s.tokens; ++i) {
    const double* row = o[1].data + static_cast<std::int64_t>(o[0].data[i]) * s.width;
    const double* position = o[2].data + i % s.seq * s.width;
    for (std::int64_t c = 0; c < s.width; ++c) o[3].data[i * s.width + c] = row[c] + position[c];
  }
}

/// Adds the rows of dout to the rows of `sum` that row_of(i) names. Magnitude: terms of an element × Σ |term|.
template <typename RowOf>
void add_rows_reference(const Shape& s, const double* dout, bool adds, const RefOperand& sum, RowOf row_of) {
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
    return is_forward(p) ? forward_operands(p) : backward_operands(p);
  }

  Cost cost(const Problem& p) const override { return is_forward(p) ? forward_cost(p) : backward_cost(p); }

  // Backward on the CPU: first occurrence of each id, next occurrence of each position's id, both int32.
  std::int64_t workspace_bytes(const Problem& p, const Target& target) const override {
    if (is_forward(p) || target.backend != "cpu") return 0;
    const Shape s(p);
    return checked_product({checked_sum(s.vocab, s.tokens), bytes_of(Format::int32)});
  }

  void reference(const Problem& p, std::span<const RefOperand> o) const override {
    if (is_forward(p)) return forward_reference(p, o);
    const Shape s(p);
    const double* tokens = o[1].data;
    add_rows_reference(s, o[0].data, adds_to_table(p), o[2],
                       [&](std::int64_t i) { return static_cast<std::int64_t>(tokens[i]); });
    add_rows_reference(s, o[0].data, p.accumulate, o[3], [&](std::int64_t i) { return i % s.seq; });
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
      const std::vector<std::pair<std::string, std::int64_t>> shape = {
          {"batch", s.batch}, {"seq", s.seq}, {"vocab", s.vocab}, {"context", s.context}, {"width", s.width}};
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
    return cases;
  }

  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    expect_variant(name(), c, {"forward", "backward"});
    const auto dim = [&](const char* key) { return case_dim(name(), c, key); };
    const EmbeddingShape shape{.batch = dim("batch"),
                               .seq = dim("seq"),
                               .vocab = dim("vocab"),
                               .context = case_dim(name(), c, "context", dim("seq")),
                               .width = dim("width")};
    if (c.variant == "forward") return embedding_forward_problem(shape, recipe.params, recipe.stream);
    return embedding_backward_problem(shape, recipe.stream, recipe.grads, case_dim(name(), c, "tied", 1) != 0,
                                      case_dim(name(), c, "accumulate", 0) != 0);
  }
};

Problem shaped(std::string variant, const EmbeddingShape& s) {
  at_least("embedding", "batch", s.batch, 0);
  at_least("embedding", "seq", s.seq, 1);
  at_least("embedding", "vocab", s.vocab, 1);
  at_least("embedding", "context", s.context, s.seq);
  at_least("embedding", "width", s.width, 1);
  return {.kernel = "embedding",
          .variant = std::move(variant),
          .shape = {{"batch", s.batch}, {"seq", s.seq}, {"vocab", s.vocab}, {"context", s.context}, {"width", s.width}},
          .formats = {},
          .constants = {}};
}

}  // namespace

Problem embedding_forward_problem(const EmbeddingShape& shape, Format params, Format out) {
  Problem problem = shaped("forward", shape);
  problem.formats = {Format::int32, params, params, out};
  return problem;
}

Problem embedding_backward_problem(const EmbeddingShape& shape, Format dout, Format grads, bool tied, bool accumulate) {
  Problem problem = shaped("backward", shape);
  problem.shape.emplace_back("tied", tied ? 1 : 0);
  problem.formats = {dout, Format::int32, grads, grads};
  problem.accumulate = accumulate;
  return problem;
}

const Kernel& embedding_kernel() {
  static const EmbeddingKernel kernel;
  return kernel;
}

}  // namespace mixroof
