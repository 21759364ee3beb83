#include "harness/oracle/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace mixroof {

std::string difference(const std::string& what, double got, double expected) {
  std::string a = fmt::format("{:.9g}", got), b = fmt::format("{:.9g}", expected);
  if (a == b) a = fmt::format("{:.17g}", got), b = fmt::format("{:.17g}", expected);
  return fmt::format("{}: got {}, expected {}", what, a, b);
}

double largest_magnitude(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values)
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  return largest;
}

void Comparison::equal(double got, double expected, const std::string& what) {
  equal(got, expected, [&] { return difference(what, got, expected); });
}

void Comparison::near(double got, double expected, double limit, const std::string& what) {
  const bool is_same = got == expected || (std::isnan(got) && std::isnan(expected));  // infinities too
  within(is_same ? 0.0 : error_of(got, expected), limit, [&] { return difference(what, got, expected); });
}

void Comparison::near(const std::vector<double>& got, const std::vector<double>& expected, const Tolerance& tolerance,
                      const std::string& what) {
  if (got.size() != expected.size()) {
    fail(fmt::format("{}: {} values, expected {}", what, got.size(), expected.size()));
    return;
  }
  const double floor = tolerance.of_largest * largest_magnitude(expected) + tolerance.absolute;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool is_same = got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i]));
    within(is_same ? 0.0 : error_of(got[i], expected[i]), tolerance.relative * std::fabs(expected[i]) + floor,
           [&] { return difference(fmt::format("{}[{}]", what, i), got[i], expected[i]); });
  }
}

void Comparison::fail(const std::string& why) {
  within(kFar, 0.0, [&] { return why; });
}

OracleRow Comparison::row(std::string group, std::string item, std::string detail) const {
  OracleRow row{.group = std::move(group),
                .item = std::move(item),
                .verdict = failed_ > 0 ? OracleVerdict::fail : OracleVerdict::pass,
                .compared = compared_,
                .worst = worst_,
                .limit = limit_,
                .where = where_,
                .detail = std::move(detail)};
  if (compared_ == 0) {
    row.verdict = OracleVerdict::skipped;
    row.detail = "nothing is stored to compare with";
  }
  return row;
}

}  // namespace mixroof
