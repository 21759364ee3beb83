// Dimensions of a case as a user typed them ("rows=3,width=769"), with errors that name the kernel and the dimension.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "harness/status.h"
#include "kernels/kernel.h"

namespace mixroof {

/// Throws UsageError when `value` is below `least`; returns it otherwise.
inline std::int64_t at_least(std::string_view kernel, std::string_view key, std::int64_t value, std::int64_t least) {
  if (value < least)
    throw UsageError(
        fmt::format("{}: dimension {}={} is impossible; it must be at least {}", kernel, key, value, least));
  return value;
}

/// Dimension `key` of a case, or `otherwise` when the case leaves it out. Throws UsageError naming the dimension when
/// it is absent without `otherwise`.
inline std::int64_t case_dim(std::string_view kernel, const Case& c, std::string_view key,
                             std::optional<std::int64_t> otherwise = std::nullopt) {
  for (const auto& [name, value] : c.shape)
    if (name == key) return value;
  if (otherwise) return *otherwise;
  throw UsageError(fmt::format("{}: dimension {} is missing from the problem; give {}=N", kernel, key, key));
}

/// Throws UsageError naming the variant when it is none of `variants`.
inline void expect_variant(std::string_view kernel, const Case& c, std::initializer_list<std::string_view> variants) {
  if (std::find(variants.begin(), variants.end(), c.variant) == variants.end())
    throw UsageError(
        fmt::format("{}: variant '{}' is unknown; use {}", kernel, c.variant, fmt::join(variants, " or ")));
}

}  // namespace mixroof
