#include "kernels/attention/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/numeric/checked.h"
#include "harness/numeric/codec.h"
#include "kernels/attention/attention_shape.h"
#include "kernels/case_dim.h"

namespace mixroof {
namespace {

constexpr double kDelta = 0x1p-24;  // unit roundoff of fp32

bool is_backward(const Problem& p) { return p.variant == "backward"; }

/// The terms of the error limit in attention.h.
struct ErrorTerms {
  double sums;   // γ
  double input;  // υ
  double floor;  // φ
  explicit ErrorTerms(const Problem& p) {
    const AttentionLayout s(p);
    const std::int64_t met = is_backward(p) ? s.seq * s.group() : s.seq;
    sums = (8 + std::sqrt(static_cast<double>(std::max(s.head_dim, met)))) * kDelta;
    const Format io = p.formats[0];
    input = is_16_bit(io) ? facts(io).unit_roundoff : 0;
    floor = is_16_bit(io) ? facts(io).min_subnormal / 2 : 0;
  }
  /// Bound of a product's operand that is `value` and lost `sums`·`lost`, as a magnitude: in units of scale().
  double magnitude(double value, double lost) const { return (input * value + sums * lost + floor) / scale(); }
  double scale() const { return sums + input; }
};

double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

double magnitude_dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::fabs(a[i] * b[i]);
  return sum;
}

/// One query row of one head: scores over the keys first … i and what they may have lost.
class ScoreRow {
 public:
  ScoreRow(const AttentionLayout& layout, const double* qkv, const double* first_key, std::int64_t b, std::int64_t head,
           std::int64_t i)
      : first(first_key ? static_cast<std::int64_t>(first_key[b * layout.seq + i]) : 0),
        layout_(layout),
        qkv_(qkv),
        b_(b),
        kv_head_(head / layout.group()),
        scale_(1 / std::sqrt(static_cast<double>(layout.head_dim))) {
    const double* q = qkv + layout.query(b, head) + i * layout.qkv_stride();
    for (std::int64_t j = first; j <= i; ++j) {
      scores_.push_back(dot(q, key(j), layout.head_dim) * scale_);
      losses_.push_back(magnitude_dot(q, key(j), layout.head_dim) * scale_);
    }
  }
  const double* key(std::int64_t j) const { return qkv_ + layout_.key(b_, kv_head_) + j * layout_.qkv_stride(); }
  const double* value(std::int64_t j) const { return qkv_ + layout_.value(b_, kv_head_) + j * layout_.qkv_stride(); }
  double score(std::int64_t j) const { return scores_[static_cast<std::size_t>(j - first)]; }  // S_ij
  double loss(std::int64_t j) const { return losses_[static_cast<std::size_t>(j - first)]; }   // A_ij
  double log_sum_exp() const {
    const double largest = *std::max_element(scores_.begin(), scores_.end());
    double sum = 0;
    for (const double s : scores_) sum += std::exp(s - largest);
    return largest + std::log(sum);
  }

  const std::int64_t first;

 private:
  std::vector<double> scores_, losses_;
  const AttentionLayout& layout_;
  const double* qkv_;
  std::int64_t b_, kv_head_;
  double scale_;
};

/// Calls f(b, head, i) for every query row.
template <typename F>
void for_query_rows(const AttentionLayout& layout, F f) {
  for (std::int64_t b = 0; b < layout.batch; ++b)
    for (std::int64_t head = 0; head < layout.heads; ++head)
      for (std::int64_t i = 0; i < layout.seq; ++i) f(b, head, i);
}

/// data is null for operands that a problem does not have.
struct AttentionRefs {
  AttentionRefs(const Problem& p, std::span<const RefOperand> o) {
    const AttentionOperands at(p);
    qkv = o[at.qkv];
    out = o[at.out];
    lse = o[at.lse];
    if (p.dim_or("packed", 0) != 0) first_key = o[at.first_key];
    if (!is_backward(p)) return;
    dout = o[at.dout];
    dqkv = o[at.dqkv];
  }
  RefOperand qkv, first_key, out, dout, lse, dqkv;
};

void forward_row(const AttentionLayout& layout, const ErrorTerms& terms, const AttentionRefs& o, std::int64_t b,
                 std::int64_t head, std::int64_t i) {
  const ScoreRow row(layout, o.qkv.data, o.first_key.data, b, head, i);
  const double normaliser = row.log_sum_exp();
  const std::int64_t lse_at = layout.lse(b, head) + i, out_at = layout.out(b, head) + i * layout.out_stride();
  double mean_loss = 0;
  for (std::int64_t j = row.first; j <= i; ++j) mean_loss += std::exp(row.score(j) - normaliser) * row.loss(j);
  const double common = 1 + std::fabs(normaliser) + mean_loss;
  o.lse.data[lse_at] = normaliser;
  if (o.lse.magnitude) o.lse.magnitude[lse_at] = common;
  for (std::int64_t j = row.first; j <= i; ++j) {
    const double p = std::exp(row.score(j) - normaliser);
    const double weight = terms.magnitude(p, p * (common + row.loss(j)));
    for (std::int64_t d = 0; d < layout.head_dim; ++d) {
      o.out.data[out_at + d] += p * row.value(j)[d];
      if (o.out.magnitude) o.out.magnitude[out_at + d] += weight * std::fabs(row.value(j)[d]);
    }
  }
}

/// to[d] += factor·with[d] in dqkv, and its yardstick.
void add_product(const RefOperand& dqkv, std::int64_t at, double factor, double magnitude, const double* with,
                 std::int64_t n) {
  for (std::int64_t d = 0; d < n; ++d) {
    dqkv.data[at + d] += factor * with[d];
    if (dqkv.magnitude) dqkv.magnitude[at + d] += magnitude * std::fabs(with[d]);
  }
}

void backward_row(const AttentionLayout& layout, const ErrorTerms& terms, const AttentionRefs& o, std::int64_t b,
                  std::int64_t head, std::int64_t i) {
  const ScoreRow row(layout, o.qkv.data, o.first_key.data, b, head, i);
  const std::int64_t n = layout.head_dim, step = layout.qkv_stride(), kv_head = head / layout.group();
  const double scale = 1 / std::sqrt(static_cast<double>(n));
  const double lse = o.lse.data[layout.lse(b, head) + i];
  const double* out = o.out.data + layout.out(b, head) + i * layout.out_stride();
  const double* dout = o.dout.data + layout.out(b, head) + i * layout.out_stride();
  const std::int64_t query_at = layout.query(b, head) + i * step;
  const double delta = dot(out, dout, n), delta_size = magnitude_dot(out, dout, n);
  for (std::int64_t j = row.first; j <= i; ++j) {
    const double p = std::exp(row.score(j) - lse);
    const double w = 1 + row.loss(j) + std::fabs(lse);
    const double ds = p * (dot(dout, row.value(j), n) - delta);
    const double ds_lost = w * p * (magnitude_dot(dout, row.value(j), n) + delta_size);
    const double ds_magnitude = terms.magnitude(std::fabs(ds), ds_lost) * scale;
    add_product(o.dqkv, layout.value(b, kv_head) + j * step, p, terms.magnitude(p, w * p), dout, n);
    add_product(o.dqkv, query_at, ds * scale, ds_magnitude, row.key(j), n);
    add_product(o.dqkv, layout.key(b, kv_head) + j * step, ds * scale, ds_magnitude, o.qkv.data + query_at, n);
  }
}

void clear(const RefOperand& operand) {
  std::fill_n(operand.data, operand.count, 0.0);
  if (operand.magnitude) std::fill_n(operand.magnitude, operand.count, 0.0);
}

Case attention_case(const char* variant, const AttentionShape& s) {
  Case c{variant,
         {{"batch", s.batch}, {"seq", s.seq}, {"heads", s.heads}, {"kv_heads", s.kv_heads}, {"head_dim", s.head_dim}}};
  if (s.packed) c.shape.insert(c.shape.end(), {{"packed", 1}, {"pairs", s.pairs}});
  return c;
}

/// Twice the query-key pairs that the causal half of a micro-batch holds.
std::int64_t twice_causal_pairs(const AttentionShape& s) { return checked_product({s.batch, s.seq, s.seq + 1}); }
std::int64_t twice_pairs(const AttentionShape& s) {
  return s.packed && s.pairs > 0 ? checked_product({2, s.pairs}) : twice_causal_pairs(s);
}

/// Length of all documents but one for which a row has its share of `pairs`: with n of length l and one of the rest,
/// n·l² + (seq - n·l)² must be the sum of squared lengths that `pairs` stands for.
double document_length(const AttentionShape& s) {
  if (s.batch == 0 || s.seq == 0) return 1;
  const auto seq = static_cast<double>(s.seq);
  const double squares = static_cast<double>(twice_pairs(s)) / static_cast<double>(s.batch) - seq;
  const double n = std::floor(seq * seq / squares);
  const double root = std::sqrt(std::max(n * n * seq * seq - n * (n + 1) * (seq * seq - squares), 0.0));
  return (n * seq + root) / (n * (n + 1));
}

class AttentionKernel final : public Kernel {
 public:
  std::string_view name() const override { return "attention"; }
  std::string_view summary() const override {
    return "causal self-attention and its gradient, memory linear in the sequence";
  }
  CostCategory category() const override { return CostCategory::attention; }

  std::vector<Operand> operands(const Problem& p) const override {
    const AttentionLayout s(p);
    const std::int64_t rows = checked_product({s.batch, s.seq});
    const std::vector<std::int64_t> projections = {rows, s.qkv_stride()}, heads = {rows, s.out_stride()};
    const std::vector<std::int64_t> per_query = {s.batch, s.heads, s.seq};
    const double length = document_length(s);
    std::vector<Operand> operands = {{"qkv", Access::read, {}, projections, {}}};
    if (s.packed)
      operands.push_back(
          {"first_key", Access::read, {}, {rows}, {.kind = Fill::Kind::documents, .scale = length, .limit = s.seq}});
    if (!is_backward(p)) {
      operands.push_back({"out", Access::write, {}, heads, {}});
      operands.push_back({"lse", Access::write, {}, per_query, {}});
    } else {
      // About what unit-normal scores give, where an isolated timing cannot afford to compute it.
      const double usual_lse = std::log(length) + 0.5;
      operands.push_back({"out", Access::read, {}, heads, {}});
      operands.push_back({"dout", Access::read, {}, heads, {}});
      operands.push_back({"lse", Access::read, {}, per_query, {.kind = Fill::Kind::constant, .offset = usual_lse}});
      operands.push_back({"dqkv", Access::write, {}, projections, {}});
    }
    for (std::size_t i = 0; i < operands.size(); ++i) operands[i].format = p.formats[i];
    return operands;
  }

  Cost cost(const Problem& p) const override {
    const AttentionLayout s(p);
    Cost cost = compulsory_bytes(p);
    // Per pair of a head 2·head_dim FLOPs in each product: 2 products forward, 5 backward.
    cost.add_flops(p.formats[0], checked_product({twice_pairs(s), s.heads, s.head_dim, is_backward(p) ? 5 : 2}));
    return cost;
  }

  std::int64_t workspace_bytes(const Problem& p, const Target& target) const override {
    const AttentionPanels panels{AttentionLayout(p)};
    const std::int64_t floats = is_backward(p) ? panels.backward_floats() : panels.forward_floats();
    return checked_product({target.threads, floats, 4});
  }

  void reference(const Problem& p, std::span<const RefOperand> o) const override {
    const AttentionLayout layout(p);
    const ErrorTerms terms(p);
    const AttentionRefs refs(p, o);
    if (is_backward(p)) {
      clear(refs.dqkv);
      for_query_rows(layout, [&](auto b, auto head, auto i) { backward_row(layout, terms, refs, b, head, i); });
    } else {
      clear(refs.out);
      for_query_rows(layout, [&](auto b, auto head, auto i) { forward_row(layout, terms, refs, b, head, i); });
    }
  }

  double limit(const Problem& p, std::size_t operand, double reference, double magnitude) const override {
    const ErrorTerms terms(p);
    const bool is_lse = !is_backward(p) && operand == AttentionOperands(p).lse;
    return (is_lse ? terms.sums : terms.scale()) * magnitude + rounding_limit(p.formats[operand], reference);
  }

  void complete_inputs(const Problem& p, std::span<std::vector<double>> inputs) const override {
    if (!is_backward(p)) return;
    const Problem forward = attention_forward_problem(AttentionLayout(p), p.formats[0]);
    const AttentionOperands at(p), forward_at(forward);
    std::vector<RefOperand> operands(forward.formats.size());
    const auto use = [&](std::size_t of_forward, std::size_t of_backward) {
      std::vector<double>& values = inputs[of_backward];
      operands[of_forward] = {
          .data = values.data(), .magnitude = nullptr, .count = static_cast<std::int64_t>(values.size())};
    };
    for (double& v : inputs[at.qkv]) v = round_to(p.formats[at.qkv], v);
    use(forward_at.qkv, at.qkv);
    if (p.dim_or("packed", 0) != 0) use(forward_at.first_key, at.first_key);
    use(forward_at.out, at.out);
    use(forward_at.lse, at.lse);
    reference(forward, operands);
    for (const std::size_t i : {at.out, at.lse})
      for (double& v : inputs[i]) v = round_to(p.formats[i], v);
  }

  std::vector<Case> cases() const override {
    std::vector<Case> cases;
    const AttentionShape shapes[] = {{1, 1, 1, 1, 1},    {2, 1, 2, 2, 8},    {1, 2, 3, 3, 5},   {2, 7, 2, 1, 16},
                                     {1, 17, 3, 3, 10},  {1, 31, 4, 2, 15},  {2, 33, 2, 2, 17}, {1, 63, 1, 1, 64},
                                     {1, 64, 2, 2, 64},  {1, 65, 1, 1, 64},  {1, 66, 2, 1, 80}, {1, 129, 1, 1, 33},
                                     {1, 67, 2, 1, 128}, {1, 131, 1, 1, 24}, {0, 16, 2, 2, 16}, {1, 0, 2, 2, 16},
                                     {2, 70, 1, 1, 65},
                                     // Packed: documents of about pairs per position, also of one position, also of a row.
                                     {1, 1, 1, 1, 8, true, 1},
                                     {2, 33, 2, 1, 16, true, 2 * 33},
                                     {2, 70, 4, 2, 16, true, 2 * 70 * 4},
                                     {3, 131, 2, 2, 24, true, 3 * 131 * 12},
                                     {2, 200, 1, 1, 10, true, 2 * 200 * 34},
                                     {1, 259, 2, 1, 64, true, 259 * 70},
                                     {1, 129, 2, 1, 33, true, 0},
                                     {0, 16, 2, 2, 16, true, 0}};
    for (const AttentionShape& shape : shapes)
      for (const char* variant : {"forward", "backward"}) cases.push_back(attention_case(variant, shape));
    return cases;
  }

  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    expect_variant(name(), c, {"forward", "backward"});
    AttentionShape s;
    s.batch = case_dim(name(), c, "batch");
    s.seq = case_dim(name(), c, "seq");
    s.heads = case_dim(name(), c, "heads");
    s.kv_heads = case_dim(name(), c, "kv_heads", s.heads);
    s.head_dim = case_dim(name(), c, "head_dim");
    s.packed = case_dim(name(), c, "packed", 0) != 0;
    s.pairs = case_dim(name(), c, "pairs", 0);
    if (c.variant == "forward") return attention_forward_problem(s, recipe.between);
    return attention_backward_problem(s, recipe.between);
  }
};

void check_pairs(const AttentionShape& s) {
  const std::int64_t least = checked_product({s.batch, s.seq}), most = twice_causal_pairs(s) / 2;
  if (s.pairs != 0 && (!s.packed || s.pairs < least || s.pairs > most))
    throw UsageError(fmt::format(
        "attention: dimension pairs={} is impossible; packed rows of this shape have {} to {} (0 stands for all)",
        s.pairs, least, most));
}

Problem checked_problem(const char* variant, const AttentionShape& s, std::vector<Format> formats) {
  at_least("attention", "batch", s.batch, 0);
  at_least("attention", "seq", s.seq, 0);
  at_least("attention", "heads", s.heads, 1);
  at_least("attention", "kv_heads", s.kv_heads, 1);
  at_least("attention", "head_dim", s.head_dim, 1);
  if (s.heads % s.kv_heads != 0)
    throw UsageError(
        fmt::format("attention: dimension heads={} is not a multiple of kv_heads={}; choose kv_heads that divides it",
                    s.heads, s.kv_heads));
  check_pairs(s);
  if (s.packed) formats.insert(formats.begin() + 1, Format::int32);
  return {.kernel = "attention",
          .variant = variant,
          .shape = attention_case(variant, s).shape,
          .formats = std::move(formats),
          .constants = {}};
}

}  // namespace

Problem attention_forward_problem(const AttentionShape& shape, Format io) {
  return checked_problem("forward", shape, {io, io, Format::fp32});
}

Problem attention_backward_problem(const AttentionShape& shape, Format io) {
  return checked_problem("backward", shape, {io, io, io, Format::fp32, io});
}

const Kernel& attention_kernel() {
  static const AttentionKernel kernel;
  return kernel;
}

}  // namespace mixroof
