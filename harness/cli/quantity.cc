#include "harness/cli/quantity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>

#include "harness/status.h"

namespace mixroof::cli {
namespace {

/// Four significant digits without trailing zeros.
std::string short_number(double value) { return fmt::format("{:.4g}", value); }

struct Unit {
  std::string_view name;  // lower case
  double factor;
};
constexpr double kKi = 1024;
constexpr std::array kByteUnits = std::to_array<Unit>({{"", 1},
                                                       {"b", 1},
                                                       {"kb", 1e3},
                                                       {"mb", 1e6},
                                                       {"gb", 1e9},
                                                       {"tb", 1e12},
                                                       {"kib", kKi},
                                                       {"mib", kKi* kKi},
                                                       {"gib", kKi* kKi* kKi},
                                                       {"tib", kKi* kKi* kKi* kKi}});
constexpr std::array kTimeUnits =
    std::to_array<Unit>({{"", 1}, {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"m", 60}, {"min", 60}, {"h", 3600}});

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

/// A number that is not negative with one of `units` behind it.
std::optional<double> parse_quantity(std::string_view text, std::span<const Unit> units) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value) || value < 0) return std::nullopt;
  std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  const std::string unit = lower(rest);
  for (const Unit& known : units)
    if (known.name == unit) return value * known.factor;
  return std::nullopt;
}

}  // namespace

std::string si_text(double value, std::string_view unit) {
  static constexpr std::array<std::string_view, 11> kPrefixes = {"p", "n", "u", "m", "", "k", "M", "G", "T", "P", "E"};
  constexpr int kUnitPrefix = 4;
  if (std::isnan(value)) return "-";
  if (value == 0 || std::isinf(value)) return fmt::format("{} {}", value, unit);
  int prefix = static_cast<int>(std::floor(std::log10(std::fabs(value)) / 3));
  // 999.96 has four digits as 1000: one prefix up.
  if (std::fabs(value) / std::pow(1000.0, prefix) >= 999.95) ++prefix;
  prefix = std::clamp(prefix, -kUnitPrefix, static_cast<int>(kPrefixes.size()) - 1 - kUnitPrefix);
  std::string text = short_number(value / std::pow(1000.0, prefix));
  const std::string_view letter = kPrefixes[static_cast<std::size_t>(prefix + kUnitPrefix)];
  if (letter.empty() && unit.empty()) return text;
  return fmt::format("{} {}{}", text, letter, unit);
}

std::string bytes_text(std::int64_t bytes) {
  static constexpr std::array<std::string_view, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (std::fabs(value) >= 1023.95 && unit + 1 < kUnits.size()) value /= kKi, ++unit;
  return fmt::format("{} {}", short_number(value), kUnits[unit]);
}

std::string percent_text(double fraction) {
  return std::isnan(fraction) ? "-" : fmt::format("{:.3g} %", fraction * 100);
}

std::int64_t parse_bytes(std::string_view text, std::string_view option) {
  constexpr double kMost = 9.2e18;  // below 2^63
  const std::optional<double> bytes = parse_quantity(text, kByteUnits);
  if (!bytes || *bytes > kMost)
    throw UsageError(fmt::format("{}: '{}' is no number of bytes; write for example 24GiB or 24e9", option, text));
  return static_cast<std::int64_t>(*bytes);
}

double parse_duration_s(std::string_view text, std::string_view option) {
  const std::optional<double> seconds = parse_quantity(text, kTimeUnits);
  if (!seconds) throw UsageError(fmt::format("{}: '{}' is no duration; write for example 120s or 2m", option, text));
  return *seconds;
}

double parse_number(std::string_view text, std::string_view option) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    throw UsageError(fmt::format("{}: '{}' is no number; write for example 0.001 or 3e-4", option, text));
  return value;
}

}  // namespace mixroof::cli
