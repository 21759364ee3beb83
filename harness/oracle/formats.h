// What the parts of group formats share.
#pragma once

#include <cstdint>
#include <string>

#include "harness/numeric/format.h"
#include "harness/oracle/check.h"
#include "harness/oracle/entry.h"

namespace mixroof {

inline constexpr const char* kFormatsGroup = "formats";

/// Throws UsageError naming the entry for an unknown name.
Format format_of(const OracleEntry& entry, const std::string& format_name);
/// Whole numbers of 64 bits that a manifest holds as strings.
std::uint64_t unsigned_of(const OracleEntry& entry, int base = 10);
/// A code or pattern that was read as a number.
inline std::uint32_t code_of(double stored) { return static_cast<std::uint32_t>(stored); }

/// double_rounding.json and absorption.json.
void check_double_rounding(OracleSession& session);
void check_absorption(OracleSession& session);

}  // namespace mixroof
