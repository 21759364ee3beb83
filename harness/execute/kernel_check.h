// A kernel against its double-precision reference: seeded inputs, quantized once and given to both sides; outputs within
// the kernel's limit (written so that NaN fails), guard bytes untouched, not mostly zero, a second run bitwise equal.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "harness/backend/backend.h"
#include "kernels/kernel.h"

namespace mixroof {

enum class CheckInputs : std::uint8_t {
  random,    // as the operands' Fill says; the kernel's limit applies
  integers,  // whole numbers in ±exact_limit wherever a Fill allows it; limit 0
};

struct CheckOptions {
  std::uint64_t seed = 1;
  CheckInputs inputs = CheckInputs::random;
  int misalign_elements = 0;   // moves every operand this many elements off its 64-byte alignment
  bool expect_mostly_nonzero = true;
};

struct CheckResult {
  bool pass = false;
  /// One line: worst operand and element, got, expected, limit, ratio; or what else went wrong (guards, repeat, zeros).
  std::string detail;
  double worst_ratio = 0;      // |got - reference| / limit of the worst element; 0 when empty
  std::int64_t elements = 0;   // compared
};

/// Checks one plan. `plan` may be a mutant made by a test.
CheckResult check_plan(const Kernel& kernel, const Problem& problem, Backend& backend, const Plan& plan,
                       const CheckOptions& options = {});

/// Prepares `implementation` (empty: the backend's choice) and checks it.
CheckResult check_kernel(const Kernel& kernel, const Problem& problem, Backend& backend,
                         std::string_view implementation = {}, const CheckOptions& options = {});

/// Every case of the kernel in one recipe: random and (where a Fill has exact_limit) integer inputs, aligned and
/// misaligned, every implementation that supports it. Calls `visit` for each; returns the number of failures.
/// `extra_cases` replace kernel.cases() when not empty.
struct CheckRow {
  Problem problem;
  std::string recipe, implementation;
  CheckOptions options;
  CheckResult result;
  std::string repro;           // "mixroof check --kernel … --recipe … --problem … --seed …"
};
int check_recipe(const Kernel& kernel, const Recipe& recipe, Backend& backend, std::uint64_t seed,
                 std::span<const Case> cases, const std::function<void(const CheckRow&)>& visit);

/// Inputs of a problem as doubles, rounded to each operand's format: deterministic in (seed, problem, operand).
std::vector<std::vector<double>> make_inputs(const Kernel& kernel, const Problem& problem, std::uint64_t seed,
                                             CheckInputs inputs = CheckInputs::random);

/// Runs `run` instead of the kernel: a defect that a test expects the check to catch. `problem` etc. are captured by the test.
class MutantPlan : public Plan {
 public:
  explicit MutantPlan(std::function<void(const Launch&)> body) : body_(std::move(body)) {}
  void run(const Launch& launch) const override { body_(launch); }
  std::string implementation() const override { return "mutant"; }

 private:
  std::function<void(const Launch&)> body_;
};

}  // namespace mixroof
