#include "harness/cli/explain/workbench.h"

#include <algorithm>

#include "kernels/bias_grad/bias_grad.h"
#include "kernels/cast/cast.h"
#include "kernels/registry.h"
#include "kernels/residual/residual.h"

namespace mixroof::cli {

const Plan& Workbench::plan(const Problem& problem) {
  const auto known = std::find_if(plans_.begin(), plans_.end(), [&](const auto& p) { return p.first == problem; });
  if (known != plans_.end()) return *known->second;
  return *plans_.emplace_back(problem, backend_->prepare(problem)).second;
}

std::vector<Values> Workbench::run(const Problem& problem, const std::vector<Values>& inputs) {
  return run_on(*backend_, find_kernel(problem.kernel), problem, plan(problem), inputs);
}

Values Workbench::cast(const Values& values, Format format) {
  return run(cast_problem(static_cast<std::int64_t>(values.size()), Format::fp32, format), {values, {}})[1];
}

double Workbench::add(double stream, double branch, Format format) {
  return run(residual_problem(1, Format::fp32, Format::fp32, format), {{stream}, {branch}, {}})[2][0];
}

double Workbench::accumulate(const Values& addends, Format format, double start) {
  Values sum = {start};
  for (const double addend : addends)
    sum = run(bias_grad_problem(1, 1, Format::fp32, format, /*accumulate=*/true), {{addend}, sum})[1];
  return sum[0];
}

}  // namespace mixroof::cli
