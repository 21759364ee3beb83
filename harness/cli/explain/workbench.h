// The CPU backend at the service of worked examples: problems on given values, each prepared once.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/execute/kernel_run.h"

namespace mixroof::cli {

using Values = std::vector<double>;

class Workbench {
 public:
  Workbench() : backend_(make_cpu_backend(/*threads=*/1)) {}
  Backend& backend() { return *backend_; }

  /// As run_on(): what every operand holds after one run of the problem's kernel.
  std::vector<Values> run(const Problem& problem, const std::vector<Values>& inputs);

  /// `values` rounded once to `format` by the cast kernel.
  Values cast(const Values& values, Format format);
  /// stream + branch, rounded once to `format` by the residual kernel.
  double add(double stream, double branch, Format format);
  /// Adds `addends`, FP32 values, one after the other to an accumulator of `format`, as micro-batches add to a gradient
  /// (the bias_grad kernel, accumulating).
  double accumulate(const Values& addends, Format format, double start = 0);

 private:
  const Plan& plan(const Problem& problem);

  std::unique_ptr<Backend> backend_;
  std::vector<std::pair<Problem, std::unique_ptr<Plan>>> plans_;
};

}  // namespace mixroof::cli
