#include "harness/observe/op_trace.h"

#include <numeric>

#include "harness/stats/summary.h"
#include "kernels/registry.h"

namespace mixroof {
namespace {

double sum(const std::array<double, kCostCategoryCount>& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

}  // namespace

void OpTrace::before(const Op& op) {
  if (!known_.contains(&op))
    known_[&op] = {&by_problem_[op.problem.id()], static_cast<std::size_t>(find_kernel(op.problem.kernel).category())};
  backend_.synchronize();
  begin_ = std::chrono::steady_clock::now();
}

void OpTrace::after(const Op& op) {
  backend_.synchronize();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  const auto& [times, category] = known_[&op];
  times->push_back(seconds);
  current_[category] += seconds;
}

void OpTrace::end_update(double total_s) {
  categories_.push_back(current_);
  totals_.push_back(total_s);
  current_ = {};
}

std::array<double, kCostCategoryCount> OpTrace::seconds_by_category() const {
  std::array<double, kCostCategoryCount> medians = {};
  for (std::size_t c = 0; c < medians.size(); ++c) {
    std::vector<double> seconds;
    for (const auto& update : categories_) seconds.push_back(update[c]);
    medians[c] = median(seconds);
  }
  return medians;
}

double OpTrace::idle_s() const {
  std::vector<double> idle;
  for (std::size_t u = 0; u < totals_.size(); ++u) idle.push_back(totals_[u] - sum(categories_[u]));
  return median(idle);
}

double OpTrace::explained_fraction() const {
  std::vector<double> fractions;
  for (std::size_t u = 0; u < totals_.size(); ++u) fractions.push_back(sum(categories_[u]) / totals_[u]);
  return median(fractions);
}

}  // namespace mixroof
