#include "kernels/rope/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/numeric/checked.h"
#include "kernels/case_dim.h"
#include "kernels/rope/layout.h"

namespace mixroof {
namespace {

constexpr double kDelta = 0x1p-24;  // unit roundoff of fp32
constexpr double kTheta = 10000;    // of the isolated kernel

bool is_backward(const Problem& p) { return p.variant == "backward"; }

/// Turns elements `at` and `at + half`.
void turn_pair(const RefOperand& x, std::int64_t at, std::int64_t half, double cosine, double sine) {
  const double a = x.data[at], b = x.data[at + half];
  x.data[at] = a * cosine - b * sine;
  x.data[at + half] = b * cosine + a * sine;
  if (!x.magnitude) return;
  x.magnitude[at] = std::fabs(a * cosine) + std::fabs(b * sine);
  x.magnitude[at + half] = std::fabs(b * cosine) + std::fabs(a * sine);
}

class RopeKernel final : public Kernel {
 public:
  std::string_view name() const override { return "rope"; }
  std::string_view summary() const override { return "rotary position embedding of queries and keys, in place"; }

  std::vector<Operand> operands(const Problem& p) const override {
    const RopeLayout s(p);
    const std::int64_t rows = checked_product({s.batch, s.seq});
    std::vector<Operand> operands;
    if (s.packed)
      operands.push_back(
          {"position_ids", Access::read, p.formats[0], {rows}, {.kind = Fill::Kind::tokens, .limit = s.context}});
    operands.push_back(
        {is_backward(p) ? "dqkv" : "qkv", Access::read_write, p.formats.back(), {rows, s.stride()}, {}});
    return operands;
  }

  Cost cost(const Problem& p) const override {
    const RopeLayout s(p);
    const std::int64_t turned = checked_product({s.batch, s.seq, s.turned()});
    Cost cost;
    cost.add_flops(Format::fp32, checked_product({3, turned}));
    cost.bytes_written = checked_product({turned, bytes_of(p.formats.back())});
    const std::int64_t ids = s.packed ? checked_product({s.batch, s.seq, bytes_of(p.formats[0])}) : 0;
    cost.bytes_read = checked_sum(cost.bytes_written, ids);
    return cost;
  }

  // On the CPU: a row of queries and keys in fp32 for each worker.
  std::int64_t workspace_bytes(const Problem& p, const Target& target) const override {
    if (target.backend != "cpu") return 0;
    return checked_product({target.threads, RopeLayout(p).scratch_floats(p.formats.back()), 4});
  }

  void reference(const Problem& p, std::span<const RefOperand> o) const override {
    const RopeLayout s(p);
    const RefOperand& x = o[s.turned_operand()];
    if (x.magnitude) std::fill_n(x.magnitude, x.count, 0.0);
    const double direction = is_backward(p) ? -1 : 1;
    for (std::int64_t row = 0; row < s.rows(); ++row) {
      const double position = s.packed ? o[0].data[row] : static_cast<double>(row % s.seq);
      for (std::int64_t j = 0; j < s.half(); ++j) {
        const double angle = direction * position * rope_rate(j, s.head_dim, p.constant("theta"));
        for (std::int64_t head = 0; head < s.turned_heads(); ++head)
          turn_pair(x, row * s.stride() + head * s.head_dim + j, s.half(), std::cos(angle), std::sin(angle));
      }
    }
  }

  double limit(const Problem& p, std::size_t operand, double reference, double magnitude) const override {
    return 4 * kDelta * magnitude + rounding_limit(p.formats[operand], reference);
  }

  std::vector<Case> cases() const override {
    std::vector<Case> cases;
    const auto add = [&](const RopeShape& s) {
      for (const char* variant : {"forward", "backward"}) cases.push_back({variant, case_shape(s)});
    };
    for (const std::int64_t head_dim : {2, 10, 14, 16, 30, 32, 34, 64, 66, 128, 130})
      add({.batch = 2, .seq = 3, .heads = 3, .kv_heads = 1, .head_dim = head_dim, .context = 5, .packed = head_dim % 4 == 2});
    for (const bool packed : {false, true}) {
      add({.batch = 1, .seq = 70, .heads = 2, .kv_heads = 2, .head_dim = 16, .context = 4096, .packed = packed});
      add({.batch = 0, .seq = 4, .heads = 2, .kv_heads = 1, .head_dim = 8, .context = 4, .packed = packed});
      add({.batch = 2, .seq = 2, .heads = 40, .kv_heads = 8, .head_dim = 128, .context = 2, .packed = packed});
    }
    add({.batch = 2, .seq = 9, .heads = 1, .kv_heads = 1, .head_dim = 1026, .context = 4, .packed = true});
    return cases;
  }

  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    expect_variant(name(), c, {"forward", "backward"});
    RopeShape s;
    s.batch = case_dim(name(), c, "batch");
    s.seq = case_dim(name(), c, "seq");
    s.heads = case_dim(name(), c, "heads");
    s.kv_heads = case_dim(name(), c, "kv_heads", s.heads);
    s.head_dim = case_dim(name(), c, "head_dim");
    s.context = case_dim(name(), c, "context", s.seq);
    s.packed = case_dim(name(), c, "packed", 0) != 0;
    if (c.variant == "forward") return rope_forward_problem(s, recipe.between, kTheta);
    return rope_backward_problem(s, recipe.between, kTheta);
  }

  static std::vector<std::pair<std::string, std::int64_t>> case_shape(const RopeShape& s) {
    return {{"batch", s.batch},       {"seq", s.seq},         {"heads", s.heads},  {"kv_heads", s.kv_heads},
            {"head_dim", s.head_dim}, {"context", s.context}, {"packed", s.packed}};
  }
};

Problem checked_problem(const char* variant, const RopeShape& s, Format io, double theta) {
  at_least("rope", "batch", s.batch, 0);
  at_least("rope", "seq", s.seq, 1);
  at_least("rope", "heads", s.heads, 1);
  at_least("rope", "kv_heads", s.kv_heads, 1);
  at_least("rope", "head_dim", s.head_dim, 2);
  at_least("rope", "context", s.context, s.packed ? 1 : s.seq);
  if (s.head_dim % 2 != 0)
    throw UsageError(fmt::format("rope: dimension head_dim={} is odd; choose an even one", s.head_dim));
  Problem problem{.kernel = "rope",
                  .variant = variant,
                  .shape = RopeKernel::case_shape(s),
                  .formats = {io},
                  .constants = {{"theta", theta}}};
  if (s.packed) problem.formats.insert(problem.formats.begin(), Format::int32);
  return problem;
}

}  // namespace

Problem rope_forward_problem(const RopeShape& shape, Format io, double theta) {
  return checked_problem("forward", shape, io, theta);
}

Problem rope_backward_problem(const RopeShape& shape, Format io, double theta) {
  return checked_problem("backward", shape, io, theta);
}

const Kernel& rope_kernel() {
  static const RopeKernel kernel;
  return kernel;
}

}  // namespace mixroof
