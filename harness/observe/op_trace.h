// In-step op times: every op of running updates timed where it runs, in a pass of its own (no step time is taken from it).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "harness/execute/execution.h"
#include "kernels/kernel.h"

namespace mixroof {

inline constexpr int kCostCategoryCount = 7;

class OpTrace : public OpObserver {
 public:
  explicit OpTrace(Backend& backend) : backend_(backend) {}
  void before(const Op& op) override;
  void after(const Op& op) override;

  /// Call after each traced update with its total time.
  void end_update(double total_s);

  /// Times of one op of a problem (Problem::id()), every occurrence of every traced update.
  const std::map<std::string, std::vector<double>>& by_problem() const { return by_problem_; }
  /// Median over the traced updates of the seconds booked per category. Ops that a checkpointing pass repeats are booked
  /// to recompute_s() alone.
  std::array<double, kCostCategoryCount> seconds_by_category() const;
  double recompute_s() const;
  /// Median seconds of a traced update outside its ops: the executor's own work.
  double idle_s() const;
  /// Σ op times ÷ time of the traced update, median over updates.
  double explained_fraction() const;
  std::int64_t updates() const { return static_cast<std::int64_t>(totals_.size()); }

 private:
  Backend& backend_;
  std::chrono::steady_clock::time_point begin_;
  std::map<std::string, std::vector<double>> by_problem_;
  /// Seconds by category; the last place is recomputation.
  static constexpr std::size_t kRecompute = kCostCategoryCount;
  using Booked = std::array<double, kCostCategoryCount + 1>;
  double median_booked(std::size_t place) const;

  std::map<const Op*, std::pair<std::vector<double>*, std::size_t>> known_;  // where an op's times go, its place
  Booked current_ = {};
  std::vector<Booked> booked_;
  std::vector<double> totals_;
};

}  // namespace mixroof
