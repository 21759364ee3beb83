// What tests of kernels share: every case of every recipe on every vector target of this processor, one run on given
// arrays or values, and mutants. A helper that a second kernel's test needs goes here. Kernels against the oracle:
// harness/oracle/kernels.cc.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/execute/kernel_check.h"
#include "harness/execute/kernel_run.h"
#include "harness/execute/oracle_test_support.h"
#include "kernels/control.h"

namespace mixroof {

// ---- Every case. ----

/// Calls f() once for each vector target that this build has and this processor runs; afterwards, also after an
/// exception, the best one is taken again.
inline void for_each_target(const std::function<void()>& f) {
  struct Restore {
    ~Restore() {
      hwy::SetSupportedTargetsForTest(0);
      hwy::GetChosenTarget().DeInit();
    }
  } restore;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    f();
  }
}

struct CaseChecks {
  int count = 0;
  std::set<std::string> implementations;
};

/// Expects the cases to pass in every recipe. A problem that recipes share is checked once and counts for each of them.
inline CaseChecks expect_cases_pass(const Kernel& kernel, Backend& backend, const std::vector<Case>& cases) {
  CaseChecks checks;
  std::vector<std::pair<Problem, int>> seen;  // with its number of checks
  for (const Recipe& recipe : all_recipes())
    for (const Case& c : cases) {
      const std::optional<Problem> problem = kernel.problem(recipe, c);
      if (!problem) continue;
      auto known = std::find_if(seen.begin(), seen.end(), [&](const auto& entry) { return entry.first == *problem; });
      if (known == seen.end()) {
        known = seen.insert(known, {*problem, 0});
        check_recipe(kernel, recipe, backend, /*seed=*/1, {&c, 1}, [&](const CheckRow& row) {
          ++known->second;
          checks.implementations.insert(row.implementation);
          EXPECT_TRUE(row.result.pass) << row.implementation << ": " << row.repro << "\n  " << row.result.detail;
        });
      }
      checks.count += known->second;
    }
  return checks;
}

/// Expects every case of the kernel to pass in every recipe on every target; at least `least` checks on each target, so
/// that a filter cannot empty the test.
inline void expect_all_cases_pass(const Kernel& kernel, Backend& backend, int least = 1) {
  for_each_target([&] { EXPECT_GE(expect_cases_pass(kernel, backend, kernel.cases()).count, least); });
}

/// The message of the UsageError that f() throws; empty when it throws none.
inline std::string usage_error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

// ---- One run. ----

/// Runs a plan once on arrays of the caller's in the operands' formats.
inline void run_plan(Backend& backend, const Kernel& kernel, const Problem& problem, const Plan& plan,
                     const std::vector<void*>& operands) {
  const std::int64_t bytes = kernel.workspace_bytes(problem, backend.target());
  void* workspace = backend.memory().allocate(bytes, TensorClass::workspace);
  backend.run(plan, operands, workspace);
  backend.synchronize();
  backend.memory().deallocate(workspace, bytes, TensorClass::workspace);
}

/// As run_plan, with the backend's own plan.
inline void run_kernel(Backend& backend, const Kernel& kernel, const Problem& problem,
                       const std::vector<void*>& operands) {
  run_plan(backend, kernel, problem, *backend.prepare(problem), operands);
}

/// Runs the reference in place, one vector per operand. Write-only operands may come empty.
inline void run_reference(const Kernel& kernel, const Problem& problem,
                          const std::vector<std::vector<double>*>& values) {
  const std::vector<Operand> operands = kernel.operands(problem);
  std::vector<RefOperand> views;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (operands[i].access == Access::write) values[i]->resize(static_cast<std::size_t>(operands[i].count()));
    views.push_back(
        {.data = values[i]->data(), .magnitude = nullptr, .count = static_cast<std::int64_t>(values[i]->size())});
  }
  kernel.reference(problem, views);
}

/// A control tensor of zeros but for the slots given.
inline std::vector<double> control_with(std::initializer_list<std::pair<Slot, double>> slots) {
  std::vector<double> control(kControlSlots, 0.0);
  for (const auto& [s, value] : slots) slot(control.data(), s) = value;
  return control;
}

/// Bit for bit: 0 and -0 differ, a NaN equals itself.
template <typename T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// ---- Mutants: defects that the check must see. ----

/// Runs instead of the backend's plan.
using Mutant = std::function<void(const Launch& launch)>;
/// A mutant made of the backend's own plan.
using Defect = std::function<void(const Plan& sound, const Launch& launch)>;

inline CheckResult check_mutant(Backend& backend, const Kernel& kernel, const Problem& problem, const Mutant& mutant,
                                const CheckOptions& options = {}) {
  return check_plan(kernel, problem, backend, MutantPlan(mutant), options);
}
inline CheckResult check_mutant(Backend& backend, const Kernel& kernel, const Problem& problem, const Defect& defect,
                                const CheckOptions& options = {}) {
  const std::shared_ptr<const Plan> sound = backend.prepare(problem);
  return check_mutant(
      backend, kernel, problem, [=](const Launch& launch) { defect(*sound, launch); }, options);
}

/// Expects the project's own implementation to pass and the mutant to fail under the same options.
inline void expect_caught(Backend& backend, const Kernel& kernel, const Problem& problem, const Mutant& mutant,
                          const CheckOptions& options = {}) {
  const CheckResult right = check_kernel(kernel, problem, backend, "mixroof", options);
  EXPECT_TRUE(right.pass) << right.detail;
  EXPECT_FALSE(check_mutant(backend, kernel, problem, mutant, options).pass);
}

inline float* floats(const Launch& launch, std::size_t operand) {
  return static_cast<float*>(launch.operands[operand]);
}

/// Runs `sound` and puts `bytes` bytes at `address` back to what they held: a part of the output that is not written.
inline void run_without_writing(const Plan& sound, const Launch& launch, void* address, std::size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(address);
  const std::vector<unsigned char> before(from, from + bytes);
  sound.run(launch);
  std::copy(before.begin(), before.end(), static_cast<unsigned char*>(address));
}

/// Runs `sound` with another array for one operand.
inline void run_replacing(const Plan& sound, const Launch& launch, std::size_t operand, void* replacement) {
  std::vector<void*> operands(launch.operands.begin(), launch.operands.end());
  operands[operand] = replacement;
  sound.run({.operands = operands, .workspace = launch.workspace, .queue = launch.queue});
}

// ---- Values. ----

/// What an element may be off: `relative` of it and `absolute`, together.
struct Tolerance {
  double relative = 0, absolute = 0;
};

inline void expect_near(const std::vector<double>& got, const std::vector<double>& expected, const Tolerance& tolerance,
                        const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_LE(std::fabs(got[i] - expected[i]), tolerance.relative * std::fabs(expected[i]) + tolerance.absolute)
        << what << "[" << i << "]: got " << got[i] << ", expected " << expected[i];
}

}  // namespace mixroof
