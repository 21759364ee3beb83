#include "harness/status.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace mixroof {

std::string_view name(Status status) {
  switch (status) {
    case Status::ok: return "ok";
    case Status::not_built: return "not_built";
    case Status::no_device: return "no_device";
    case Status::not_supported: return "not_supported";
    case Status::invalid_problem: return "invalid_problem";
    case Status::out_of_memory: return "out_of_memory";
    case Status::skipped: return "skipped";
    case Status::incorrect: return "incorrect";
    case Status::untrusted: return "untrusted";
    case Status::not_converged: return "not_converged";
    case Status::timed_out: return "timed_out";
    case Status::interrupted: return "interrupted";
    case Status::failed: return "failed";
  }
  return "failed";
}

namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j + 1] + 1, row[j] + 1, replaced});
    }
  }
  return row.back();
}

/// Twice the edit distance to the whole name, or to as much of its beginning as was typed and one more: "bf15" means
/// bf16-master rather than fp32.
std::size_t unlikeness(std::string_view wanted, std::string_view name) {
  return std::min(2 * edit_distance(wanted, name), 2 * edit_distance(wanted, name.substr(0, wanted.size())) + 1);
}

}  // namespace

std::vector<std::string> nearest_names(std::string_view wanted, std::span<const std::string> valid, std::size_t most) {
  std::vector<std::string> names(valid.begin(), valid.end());
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return unlikeness(wanted, a) < unlikeness(wanted, b);
  });
  names.resize(std::min(names.size(), most));
  return names;
}

void throw_unknown(std::string_view kind, std::string_view wanted, std::span<const std::string> valid,
                   std::string_view list_command) {
  throw UsageError(fmt::format("unknown {} '{}'; did you mean {}? (all of them: {})", kind, wanted,
                               fmt::join(nearest_names(wanted, valid), ", "), list_command));
}

}  // namespace mixroof
