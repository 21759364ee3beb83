#include "kernels/stream/stream.h"

#include <algorithm>
#include <cmath>

#include "kernels/case_dim.h"
#include "kernels/stream/stream_cpu.h"

namespace mixroof {
namespace {

constexpr double kFactor = 3.0;
constexpr double kWritten = 1.0;
constexpr std::int64_t kExactFloatLimit = 1 << 24;

StreamOp op_of(const Problem& problem) { return find_stream_op(problem.variant); }

class StreamKernel : public Kernel {
 public:
  std::string_view name() const override { return "stream"; }
  std::string_view summary() const override {
    return "memory streams over fp32 arrays: read, write, copy, scale, add, triad";
  }

  std::vector<Operand> operands(const Problem& problem) const override {
    const std::int64_t count = problem.dim("count");
    const StreamOp op = op_of(problem);
    // Whole numbers small enough that no sum of them leaves the exact range of fp32.
    const int exact =
        op == StreamOp::read
            ? static_cast<int>(std::min<std::int64_t>(64, kExactFloatLimit / std::max<std::int64_t>(count, 1)))
            : 64;
    const auto input = [&](const char* name) {
      return Operand{.name = name, .access = Access::read, .extent = {count}, .fill = {.exact_limit = exact}};
    };
    std::vector<Operand> list;
    if (op != StreamOp::write) list.push_back(input("a"));
    if (op == StreamOp::add || op == StreamOp::triad) list.push_back(input("b"));
    if (op == StreamOp::read)
      list.push_back({.name = "sum", .access = Access::write, .extent = {1}, .fill = {}});
    else
      list.push_back({.name = "c", .access = Access::write, .extent = {count}, .fill = {}});
    return list;
  }

  /// STREAM's own counts per element: scale 1, add 1, triad 2; reading adds each element to the sum.
  Cost cost(const Problem& problem) const override {
    Cost cost = compulsory_bytes(problem);
    const std::int64_t count = problem.dim("count");
    switch (op_of(problem)) {
      case StreamOp::read:
      case StreamOp::scale:
      case StreamOp::add:
        cost.add_flops(Format::fp32, count);
        break;
      case StreamOp::triad:
        cost.add_flops(Format::fp32, 2 * count);
        break;
      case StreamOp::copy:
      case StreamOp::write:
        break;
    }
    return cost;
  }

  std::int64_t workspace_bytes(const Problem& problem, const Target& target) const override {
    return op_of(problem) == StreamOp::read ? target.threads * kStreamPartialBytes : 0;
  }

  void reference(const Problem& problem, std::span<const RefOperand> operands) const override {
    const StreamOp op = op_of(problem);
    if (op == StreamOp::read) return reference_read(operands);
    const RefOperand& c = operands.back();
    for (std::int64_t i = 0; i < c.count; ++i) {
      const double a = op == StreamOp::write ? 0 : operands[0].data[i];
      const double b = op == StreamOp::add || op == StreamOp::triad ? operands[1].data[i] : 0;
      c.data[i] = value(op, a, b);
      if (c.magnitude) c.magnitude[i] = std::fabs(kFactor * a) + std::fabs(kFactor * b);
    }
  }

  /// copy and write move values; scale and add round once, triad at most twice; a sum of n terms rounds n times, whose
  /// errors are independent: 4·√n units (arXiv 1906.11018 gives the growth with √n).
  double limit(const Problem& problem, std::size_t, double, double magnitude) const override {
    const FormatFacts& fp32 = facts(Format::fp32);
    switch (op_of(problem)) {
      case StreamOp::copy:
      case StreamOp::write:
        return 0;
      case StreamOp::read:
        return 4 * std::sqrt(static_cast<double>(problem.dim("count"))) * fp32.unit_roundoff * magnitude;
      default:
        return 2 * fp32.unit_roundoff * magnitude + fp32.min_subnormal;
    }
  }

  std::vector<Case> cases() const override {
    std::vector<Case> all;
    for (const char* variant : {"read", "copy", "scale", "add", "triad", "write"})
      for (const std::int64_t count : {0, 1, 7, 8, 31, 64, 129, 1000, 100003})
        for (const std::int64_t nontemporal : {0, 1})
          if (nontemporal == 0 || std::string_view(variant) != "read")
            all.push_back({variant, {{"count", count}, {"nontemporal", nontemporal}}});
    return all;
  }

  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    if (recipe.name != "fp32") return std::nullopt;
    return stream_problem(c.variant, case_dim("stream", c, "count"), case_dim("stream", c, "nontemporal", 0) != 0);
  }

 private:
  static double value(StreamOp op, double a, double b) {
    switch (op) {
      case StreamOp::copy:
        return a;
      case StreamOp::scale:
        return kFactor * a;
      case StreamOp::add:
        return a + b;
      case StreamOp::triad:
        return a + kFactor * b;
      default:
        return kWritten;
    }
  }

  static void reference_read(std::span<const RefOperand> operands) {
    const RefOperand &a = operands[0], &sum = operands[1];
    double total = 0, magnitude = 0;
    for (std::int64_t i = 0; i < a.count; ++i) {
      total += a.data[i];
      magnitude += std::fabs(a.data[i]);
    }
    sum.data[0] = total;
    if (sum.magnitude) sum.magnitude[0] = magnitude;
  }
};

}  // namespace

StreamOp find_stream_op(std::string_view variant) {
  static const std::vector<std::string> names = {"read", "copy", "scale", "add", "triad", "write"};
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == variant) return static_cast<StreamOp>(i);
  throw_unknown("stream variant", variant, names, "mixroof list kernels");
}

Problem stream_problem(std::string_view variant, std::int64_t count, bool nontemporal) {
  const StreamOp op = find_stream_op(variant);
  at_least("stream", "count", count, 0);
  if (nontemporal && op == StreamOp::read)
    throw UsageError("stream: read stores nothing, so nontemporal=1 has no meaning; use nontemporal=0");
  Problem problem{.kernel = "stream",
                  .variant = std::string(variant),
                  .shape = {{"count", count}, {"nontemporal", nontemporal ? 1 : 0}},
                  .formats = {},
                  .constants = {}};
  problem.formats.assign(stream_kernel().operands(problem).size(), Format::fp32);
  return problem;
}

const Kernel& stream_kernel() {
  static const StreamKernel kernel;
  return kernel;
}

}  // namespace mixroof
