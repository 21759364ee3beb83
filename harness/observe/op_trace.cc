#include "harness/observe/op_trace.h"

#include <numeric>

#include "harness/stats/summary.h"
#include "kernels/registry.h"

namespace mixroof {
namespace {

double sum(const std::array<double, kCostCategoryCount + 1>& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

}  // namespace

void OpTrace::before(const Op& op) {
  if (!known_.contains(&op)) {
    const auto category = static_cast<std::size_t>(find_kernel(op.problem.kernel).category());
    known_[&op] = {&by_problem_[op.problem.id()], op.recompute ? kRecompute : category};
  }
  backend_.synchronize();
  begin_ = std::chrono::steady_clock::now();
}

void OpTrace::after(const Op& op) {
  backend_.synchronize();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  const auto& [times, place] = known_[&op];
  times->push_back(seconds);
  current_[place] += seconds;
}

void OpTrace::end_update(double total_s) {
  booked_.push_back(current_);
  totals_.push_back(total_s);
  current_ = {};
}

double OpTrace::median_booked(std::size_t place) const {
  std::vector<double> seconds;
  for (const Booked& update : booked_) seconds.push_back(update[place]);
  return median(seconds);
}

std::array<double, kCostCategoryCount> OpTrace::seconds_by_category() const {
  std::array<double, kCostCategoryCount> medians = {};
  for (std::size_t c = 0; c < medians.size(); ++c) medians[c] = median_booked(c);
  return medians;
}

double OpTrace::recompute_s() const { return median_booked(kRecompute); }

double OpTrace::idle_s() const {
  std::vector<double> idle;
  for (std::size_t u = 0; u < totals_.size(); ++u) idle.push_back(totals_[u] - sum(booked_[u]));
  return median(idle);
}

double OpTrace::explained_fraction() const {
  std::vector<double> fractions;
  for (std::size_t u = 0; u < totals_.size(); ++u) fractions.push_back(sum(booked_[u]) / totals_[u]);
  return median(fractions);
}

}  // namespace mixroof
