#include "harness/execute/kernel_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "harness/numeric/codec.h"
#include "kernels/fill.h"

namespace mixroof {
namespace {

constexpr std::int64_t kGuardBytes = 256;
constexpr unsigned char kGuardByte = 0xA5;
constexpr unsigned char kPoisonByte = 0xFF;  // NaN in every floating-point format, -1 in int32

/// One operand in device memory between guards, optionally off its alignment.
class GuardedBuffer {
 public:
  GuardedBuffer(Backend& backend, std::int64_t bytes, std::int64_t shift)
      : backend_(backend), bytes_(bytes), shift_(shift),
        base_(backend.memory().allocate(total(), TensorClass::workspace)) {}
  ~GuardedBuffer() { backend_.memory().deallocate(base_, total(), TensorClass::workspace); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  void* data() const { return static_cast<unsigned char*>(base_) + kGuardBytes + shift_; }
  void poison() {
    backend_.fill_bytes(base_, kGuardByte, total());
    backend_.fill_bytes(data(), kPoisonByte, bytes_);
  }
  std::vector<unsigned char> bytes() const { return copy_out(data(), bytes_); }
  bool guards_are_whole() const {
    const auto is_guard = [](unsigned char byte) { return byte == kGuardByte; };
    const std::vector<unsigned char> before = copy_out(base_, kGuardBytes + shift_);
    const std::vector<unsigned char> after = copy_out(static_cast<unsigned char*>(data()) + bytes_, kGuardBytes);
    return std::all_of(before.begin(), before.end(), is_guard) && std::all_of(after.begin(), after.end(), is_guard);
  }

 private:
  std::int64_t total() const { return bytes_ + shift_ + 2 * kGuardBytes; }
  std::vector<unsigned char> copy_out(const void* source, std::int64_t bytes) const {
    std::vector<unsigned char> copy(static_cast<std::size_t>(bytes));
    backend_.copy(copy.data(), source, bytes);
    return copy;
  }

  Backend& backend_;
  std::int64_t bytes_, shift_;
  void* base_;
};

/// Device side of a check: operands between guards, set up afresh before each run.
class CheckBench {
 public:
  CheckBench(Backend& backend, const Kernel& kernel, const Problem& problem, const CheckOptions& options)
      : backend_(backend), operands_(kernel.operands(problem)),
        inputs_(make_inputs(kernel, problem, options.seed, options.inputs)),
        workspace_(backend, kernel.workspace_bytes(problem, backend.target()), 0) {
    for (const Operand& operand : operands_)
      buffers_.push_back(std::make_unique<GuardedBuffer>(backend, backend.storage_bytes(operand.format, operand.count()),
                                                         options.misalign_elements * backend.storage_bytes(operand.format, 1)));
    for (const auto& buffer : buffers_) pointers_.push_back(buffer->data());
  }

  void run(const Plan& plan) {
    workspace_.poison();
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      buffers_[i]->poison();
      if (operands_[i].access != Access::write) backend_.write(pointers_[i], operands_[i].format, inputs_[i]);
    }
    backend_.run(plan, pointers_, workspace_.data());
    backend_.synchronize();
  }

  /// Name of the operand whose guards were overwritten, or empty.
  std::string broken_guard() const {
    for (std::size_t i = 0; i < buffers_.size(); ++i)
      if (!buffers_[i]->guards_are_whole()) return operands_[i].name;
    return workspace_.guards_are_whole() ? "" : "workspace";
  }
  std::vector<std::vector<unsigned char>> all_bytes() const {
    std::vector<std::vector<unsigned char>> all;
    for (const auto& buffer : buffers_) all.push_back(buffer->bytes());
    return all;
  }
  std::vector<double> values(std::size_t i) const {
    std::vector<double> read(static_cast<std::size_t>(operands_[i].count()));
    backend_.read(pointers_[i], operands_[i].format, read);
    return read;
  }
  const std::vector<Operand>& operands() const { return operands_; }
  const std::vector<std::vector<double>>& inputs() const { return inputs_; }

 private:
  Backend& backend_;
  std::vector<Operand> operands_;
  std::vector<std::vector<double>> inputs_;
  std::vector<std::unique_ptr<GuardedBuffer>> buffers_;
  std::vector<void*> pointers_;
  GuardedBuffer workspace_;
};

struct Reference {
  std::vector<std::vector<double>> values, magnitudes;
};

Reference run_reference(const Kernel& kernel, const Problem& problem, const std::vector<Operand>& operands,
                        const std::vector<std::vector<double>>& inputs) {
  Reference reference{.values = inputs, .magnitudes = {}};
  reference.magnitudes.resize(operands.size());
  std::vector<RefOperand> views(operands.size());
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const auto count = static_cast<std::size_t>(operands[i].count());
    reference.values[i].resize(count, 0.0);
    if (operands[i].access != Access::read) reference.magnitudes[i].resize(count, 0.0);
    views[i] = {.data = reference.values[i].data(),
                .magnitude = operands[i].access != Access::read ? reference.magnitudes[i].data() : nullptr,
                .count = operands[i].count()};
  }
  kernel.reference(problem, views);
  return reference;
}

std::string element_text(const Operand& operand, std::int64_t index) {
  std::string text;
  for (std::size_t d = operand.extent.size(); d-- > 0;) {
    text = fmt::format("{}{}{}", index % operand.extent[d], text.empty() ? "" : ", ", text);
    index /= operand.extent[d];
  }
  return text;
}

/// Compares one output; updates the worst element of the result.
void compare_output(const Kernel& kernel, const Problem& problem, std::size_t i, const Operand& operand,
                    const std::vector<double>& got, const Reference& reference, CheckInputs inputs, CheckResult& result) {
  for (std::size_t e = 0; e < got.size(); ++e) {
    const double expected = reference.values[i][e];
    const double rounded = round_to(operand.format, expected);
    const bool is_exact = inputs == CheckInputs::integers;
    const double limit = is_exact ? 0.0 : kernel.limit(problem, i, expected, reference.magnitudes[i][e]);
    const double error = std::fabs(got[e] - (is_exact ? rounded : expected));
    // Infinities and NaN are right only where the reference rounds to the same.
    const bool same_special = (std::isnan(rounded) && std::isnan(got[e])) || (std::isinf(rounded) && got[e] == rounded);
    const bool pass = same_special || error <= limit;
    const double ratio = same_special || error == 0 ? 0.0 : pass || limit > 0 ? error / limit : INFINITY;
    ++result.elements;
    if (pass && !(ratio > result.worst_ratio)) continue;
    if (result.pass || !pass) {
      const bool is_first_failure = result.pass && !pass;
      if (is_first_failure || ratio > result.worst_ratio || std::isnan(ratio)) {
        result.detail = fmt::format("worst element {}[{}]: got {:.9g}, expected {:.9g} ({:.9g} before rounding), limit {:.3g}, ratio {:.3g}",
                                    operand.name, element_text(operand, static_cast<std::int64_t>(e)), got[e], rounded,
                                    expected, limit, ratio);
        result.worst_ratio = std::isnan(ratio) ? INFINITY : ratio;
      }
    }
    if (!pass) result.pass = false;
  }
}

bool is_mostly_zero(const std::vector<double>& got, const std::vector<double>& expected) {
  const auto zeros = [](const std::vector<double>& v) { return std::count(v.begin(), v.end(), 0.0); };
  return !got.empty() && 2 * zeros(got) > static_cast<std::int64_t>(got.size()) &&
         2 * zeros(expected) <= static_cast<std::int64_t>(got.size());
}

std::string first_difference(const std::vector<Operand>& operands, const std::vector<std::vector<unsigned char>>& a,
                             const std::vector<std::vector<unsigned char>>& b) {
  for (std::size_t i = 0; i < operands.size(); ++i)
    if (a[i] != b[i]) return operands[i].name;
  return "";
}

}  // namespace

std::vector<std::vector<double>> make_inputs(const Kernel& kernel, const Problem& problem, std::uint64_t seed,
                                             CheckInputs inputs) {
  const std::vector<Operand> operands = kernel.operands(problem);
  std::vector<std::vector<double>> values(operands.size());
  const auto round_all = [&] {
    for (std::size_t i = 0; i < operands.size(); ++i)
      for (double& value : values[i]) value = round_to(operands[i].format, value);
  };
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].access == Access::write) continue;
    const auto count = static_cast<std::size_t>(operands[i].count());
    values[i] = fill_values(operands[i], operand_seed(seed, problem, operands[i].name), inputs == CheckInputs::integers);
    const std::size_t distinct = values[i].size();
    values[i].resize(count);
    for (std::size_t e = distinct; e < count; ++e) values[i][e] = values[i][e - distinct];
  }
  round_all();
  kernel.complete_inputs(problem, values);
  round_all();
  return values;
}

CheckResult check_plan(const Kernel& kernel, const Problem& problem, Backend& backend, const Plan& plan,
                       const CheckOptions& options) {
  CheckBench bench(backend, kernel, problem, options);
  CheckResult result{.pass = true, .detail = {}, .worst_ratio = 0, .elements = 0};
  const auto fail = [&](std::string why) {
    result.pass = false;
    result.detail = std::move(why);
    return result;
  };

  bench.run(plan);
  if (const std::string name = bench.broken_guard(); !name.empty())
    return fail(fmt::format("bytes outside operand '{}' were overwritten", name));
  const std::vector<std::vector<unsigned char>> first = bench.all_bytes();
  const Reference reference = run_reference(kernel, problem, bench.operands(), bench.inputs());
  for (std::size_t i = 0; i < bench.operands().size(); ++i) {
    const Operand& operand = bench.operands()[i];
    const std::vector<double> got = bench.values(i);
    if (operand.access == Access::read) {
      const bool is_unchanged = std::equal(got.begin(), got.end(), bench.inputs()[i].begin(), [](double a, double b) {
        return a == b || (std::isnan(a) && std::isnan(b));
      });
      if (!is_unchanged) return fail(fmt::format("input '{}' was changed", operand.name));
      continue;
    }
    if (options.expect_mostly_nonzero && is_mostly_zero(got, reference.values[i]))
      return fail(fmt::format("output '{}' is mostly zero", operand.name));
    compare_output(kernel, problem, i, operand, got, reference, options.inputs, result);
  }
  if (!result.pass) return result;

  bench.run(plan);
  if (const std::string name = first_difference(bench.operands(), first, bench.all_bytes()); !name.empty())
    return fail(fmt::format("a second run gave other bits in '{}'", name));
  return result;
}

CheckResult check_kernel(const Kernel& kernel, const Problem& problem, Backend& backend, std::string_view implementation,
                         const CheckOptions& options) {
  const std::unique_ptr<Plan> plan = backend.prepare(problem, implementation);
  return check_plan(kernel, problem, backend, *plan, options);
}

int check_recipe(const Kernel& kernel, const Recipe& recipe, Backend& backend, std::uint64_t seed,
                 std::span<const Case> cases, const std::function<void(const CheckRow&)>& visit) {
  const std::vector<Case> own_cases = cases.empty() ? kernel.cases() : std::vector<Case>(cases.begin(), cases.end());
  int failures = 0;
  for (const Case& c : own_cases) {
    const std::optional<Problem> problem = kernel.problem(recipe, c);
    if (!problem) continue;
    const std::vector<Operand> operands = kernel.operands(*problem);
    const bool has_exact = std::any_of(operands.begin(), operands.end(), [](const Operand& o) { return o.fill.exact_limit > 0; });
    std::vector<CheckOptions> variants = {{.seed = seed}, {.seed = seed, .misalign_elements = 1}};
    if (has_exact) variants.push_back({.seed = seed, .inputs = CheckInputs::integers});
    for (const std::string& implementation : backend.implementations(*problem))
      for (const CheckOptions& options : variants) {
        CheckRow row{.problem = *problem,
                     .recipe = std::string(recipe.name),
                     .implementation = implementation,
                     .options = options,
                     .result = check_kernel(kernel, *problem, backend, implementation, options),
                     .repro = fmt::format("mixroof check --kernel {} --recipe {} --device {} --problem {},{} --seed {}",
                                          kernel.name(), recipe.name, backend.facts().backend, c.variant,
                                          Problem{.kernel = {}, .variant = {}, .shape = c.shape, .formats = {}, .constants = {}}.shape_text(),
                                          seed)};
        if (!row.result.pass) ++failures;
        visit(row);
      }
  }
  return failures;
}

}  // namespace mixroof
