// Group kernels: forward and backward of single kernels, in double on the reference backend, and on the device in every
// format that its implementations take, each within the kernel's own limit.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "harness/execute/kernel_run.h"
#include "harness/numeric/codec.h"
#include "harness/oracle/comparison.h"
#include "harness/oracle/kernel_steps.h"

namespace mixroof {
namespace {

constexpr const char* kGroup = "kernels";
/// How exact the folder's own values are. Where an exact zero is the difference of terms it holds their rounding.
constexpr double kRelative = 1e-10, kOfLargest = 1e-12, kOfCancelled = 1e-15;
constexpr std::array kDeviceFormats = {Format::fp32, Format::bf16, Format::fp16};

using Values = std::vector<double>;

struct Reference {
  std::vector<Values> values, magnitudes;
};

Reference run_reference(const Kernel& kernel, const Problem& problem, const std::vector<Values>& inputs) {
  const std::vector<Operand> operands = kernel.operands(problem);
  Reference reference{.values = inputs, .magnitudes = std::vector<Values>(operands.size())};
  std::vector<RefOperand> views;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const auto count = static_cast<std::size_t>(operands[i].count());
    reference.values[i].resize(count, 0.0);
    if (operands[i].access != Access::read) reference.magnitudes[i].resize(count, 0.0);
    views.push_back({.data = reference.values[i].data(),
                     .magnitude = operands[i].access != Access::read ? reference.magnitudes[i].data() : nullptr,
                     .count = operands[i].count()});
  }
  kernel.reference(problem, views);
  return reference;
}

/// Inputs as their operands' formats hold them.
std::vector<Values> rounded_inputs(const Kernel& kernel, const Problem& problem, const std::vector<Values>& inputs) {
  const std::vector<Operand> operands = kernel.operands(problem);
  std::vector<Values> rounded = inputs;
  for (std::size_t i = 0; i < operands.size(); ++i)
    for (double& value : rounded[i]) value = round_to(operands[i].format, value);
  return rounded;
}

/// Least and largest id that a kernel takes unchecked.
bool is_id_of(const Fill& fill, double value) {
  const bool may_be_masked = fill.kind == Fill::Kind::targets;
  return value == std::floor(value) && value >= (may_be_masked ? -1 : 0) && value < static_cast<double>(fill.limit);
}

/// A manifest may contradict itself: inputs that are not as many as the problem takes, ids that are none.
void require_sound_inputs(const KernelCase& c, const KernelStep& step, const Problem& problem) {
  const std::vector<Operand> operands = step.kernel->operands(problem);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].access == Access::write) continue;
    if (static_cast<std::int64_t>(step.inputs[i].size()) != operands[i].count())
      throw UsageError(fmt::format("{}: case '{}': the input for {} has {} values, its shape says {}", c.file.path(),
                                   c.prefix, operands[i].name, step.inputs[i].size(), operands[i].count()));
    if (operands[i].fill.kind != Fill::Kind::tokens && operands[i].fill.kind != Fill::Kind::targets) continue;
    for (const double value : step.inputs[i])
      if (!is_id_of(operands[i].fill, value))
        throw UsageError(fmt::format("{}: case '{}': {} has the value {}, expected whole numbers below {}",
                                     c.file.path(), c.prefix, operands[i].name, value, operands[i].fill.limit));
  }
}

/// One stored array with where its elements are.
struct Stored {
  const KernelCase& c;
  const StepOutput& output;
  Values values = c.file.values(c.prefix + output.array);
  double floor = kOfLargest * largest_magnitude(values) + kOfCancelled * output.cancelled;

  double tolerance(std::size_t i) const { return kRelative * std::fabs(values[i]) + floor; }
  std::size_t position(std::size_t i) const { return output.positions.empty() ? i : output.positions.at(i); }
  std::string place(std::size_t i, const std::string& by, double got) const {
    return difference(fmt::format("{}{}[{}] by {}", c.prefix, output.array, i, by), got, values[i]);
  }
};

std::vector<Stored> stored_outputs(const KernelCase& c, const KernelStep& step, const Problem& problem) {
  std::vector<Stored> all;
  for (const StepOutput& output : step.outputs) {
    if (!c.file.has_array(c.prefix + output.array)) continue;
    const Stored& stored = all.emplace_back(Stored{.c = c, .output = output});
    const auto held = static_cast<std::size_t>(step.kernel->operands(problem)[output.operand].count());
    const std::size_t expected = output.positions.empty() ? held : output.positions.size();
    if (stored.values.size() != expected)
      throw UsageError(fmt::format("{}: array '{}{}' has {} values, expected {}", c.file.path(), c.prefix, output.array,
                                   stored.values.size(), expected));
  }
  return all;
}

void compare_double(const KernelCase& c, const KernelStep& step, Backend& backend, Comparison& comparison) {
  const Problem problem = step.problem(Format::fp32);
  require_sound_inputs(c, step, problem);
  const std::vector<Values> got = run_on(backend, *step.kernel, problem, step.inputs);
  for (const Stored& stored : stored_outputs(c, step, problem)) {
    const StepOutput& o = stored.output;
    for (std::size_t i = 0; i < stored.values.size(); ++i) {
      const double value = got[o.operand][stored.position(i)] * o.factor;
      comparison.within(std::fabs(value - stored.values[i]), stored.tolerance(i),
                        [&] { return stored.place(i, "reference", value); });
    }
  }
}

/// A narrow result against the stored one, moved by what rounding the inputs to their formats does to it in double:
/// inputs are exact in every format, but results of the forward pass that the backward pass takes are not.
void compare_narrow(const KernelCase& c, const KernelStep& step, Format io, Backend& backend, Comparison& comparison) {
  const Problem problem = step.problem(io);
  require_sound_inputs(c, step, problem);
  const std::vector<Values> inputs = rounded_inputs(*step.kernel, problem, step.inputs);
  const Reference exact = run_reference(*step.kernel, problem, step.inputs),
                  reference = run_reference(*step.kernel, problem, inputs);
  const std::vector<Stored> outputs = stored_outputs(c, step, problem);
  for (const std::string& implementation : backend.implementations(problem)) {
    const auto plan = backend.prepare(problem, implementation);
    const std::vector<Values> got = run_on(backend, *step.kernel, problem, *plan, inputs);
    for (const Stored& stored : outputs) {
      const StepOutput& o = stored.output;
      for (std::size_t i = 0; i < stored.values.size(); ++i) {
        const std::size_t at = stored.position(i);
        const double expected =
            stored.values[i] + (reference.values[o.operand][at] - exact.values[o.operand][at]) * o.factor;
        const double limit =
            step.kernel->limit(problem, o.operand, expected / o.factor, reference.magnitudes[o.operand][at]) *
                o.factor +
            stored.tolerance(i);
        const double value = got[o.operand][at] * o.factor;
        const double rounded = round_to(problem.formats[o.operand], expected);
        const bool is_rounded = value == rounded && (o.exact || std::isinf(rounded));
        comparison.within(is_rounded ? 0.0 : std::fabs(value - expected), o.exact ? 0.0 : limit,
                          [&] { return stored.place(i, implementation, value); });
      }
    }
  }
}

std::vector<KernelStep> steps_of(const std::string& kernel, const KernelCase& c) {
  try {
    return kernel_steps(kernel, c);
  } catch (const std::out_of_range&) {
    throw UsageError(
        fmt::format("{}: case '{}': an array has fewer values than its shape says", c.file.path(), c.prefix));
  }
}

void check_case(OracleSession& session, const std::string& kernel, const KernelCase& c) {
  const std::string item = kernel + "/" + c.entry.text("case");
  session.begin("kernels " + item);
  const std::vector<KernelStep> steps = steps_of(kernel, c);
  if (steps.empty()) {
    session.add({.group = kGroup,
                 .item = item,
                 .verdict = OracleVerdict::skipped,
                 .where = {},
                 .detail = "no kernel of the product computes this"});
    return;
  }
  Comparison in_double;
  for (const KernelStep& step : steps) compare_double(c, step, session.reference(), in_double);
  session.add(in_double.row(kGroup, item + " double"));
  for (const Format io : kDeviceFormats) {
    Comparison narrow;
    std::string refusal;
    for (const KernelStep& step : steps) {
      const Support support = session.device().supports(step.problem(io));
      if (!support.yes) refusal = support.reason;
      if (support.yes) compare_narrow(c, step, io, session.device(), narrow);
    }
    OracleRow row = narrow.row(kGroup, fmt::format("{} {}", item, name(io)), refusal);
    if (!refusal.empty()) row.detail = refusal;
    session.add(std::move(row));
  }
}

}  // namespace

void check_kernels_group(OracleSession& session) {
  for (const std::string& manifest : session.manifests(kGroup)) {
    const auto file = session.open(kGroup, manifest);
    for (const OracleEntry& entry : OracleEntry(*file).items("cases")) {
      const std::string kernel = entry.text("kernel");
      check_case(session, kernel, {.file = *file, .entry = entry, .prefix = kernel + "/" + entry.text("case") + "/"});
    }
  }
}

}  // namespace mixroof
