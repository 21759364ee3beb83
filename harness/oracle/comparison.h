// Errors against limits: what a row of the oracle's table is made of.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "harness/oracle/check.h"

namespace mixroof {

/// What a value may be off: `relative` of it, `of_largest` of the array's largest magnitude, and `absolute`, together.
struct Tolerance {
  double relative = 0, of_largest = 0, absolute = 0;
};

/// "WHAT: got G, expected E", with as many digits as tell them apart.
std::string difference(const std::string& what, double got, double expected);

/// Of the finite ones.
double largest_magnitude(const std::vector<double>& values);

class Comparison {
 public:
  /// One error; what is not finite fails. `where()` is called when this is the worst so far.
  template <std::invocable Where>
  void within(double error, double limit, Where&& where) {
    ++compared_;
    const bool is_inside = error == 0 || (std::isfinite(error) && error <= limit);
    failed_ += !is_inside;
    // The worst is furthest beyond its limit; a limit of 0 is infinitely far.
    const double ratio = error == 0 ? 0 : std::isfinite(error / limit) ? error / limit : kFar;
    if (ratio <= ratio_) return;
    ratio_ = ratio;
    worst_ = error;
    limit_ = limit;
    where_ = where();
  }
  /// Equal numbers; NaN equals NaN, 0 equals -0.
  template <std::invocable Where>
  void equal(double got, double expected, Where&& where) {
    const bool is_equal = got == expected || (std::isnan(got) && std::isnan(expected));
    within(is_equal ? 0.0 : error_of(got, expected), 0.0, where);
  }
  void equal(double got, double expected, const std::string& what);
  void near(double got, double expected, double limit, const std::string& what);
  /// Element by element; arrays of other lengths fail.
  void near(const std::vector<double>& got, const std::vector<double>& expected, const Tolerance& tolerance,
            const std::string& what);
  void fail(const std::string& why);

  std::int64_t compared() const { return compared_; }
  bool passes() const { return failed_ == 0; }
  /// Skipped when nothing was compared.
  OracleRow row(std::string group, std::string item, std::string detail = {}) const;

 private:
  static constexpr double kFar = std::numeric_limits<double>::infinity();
  static double error_of(double got, double expected) {
    const double error = std::fabs(got - expected);
    return std::isnan(error) ? kFar : error;
  }

  std::int64_t compared_ = 0, failed_ = 0;
  double ratio_ = 0, worst_ = 0, limit_ = 0;
  std::string where_;
};

}  // namespace mixroof
