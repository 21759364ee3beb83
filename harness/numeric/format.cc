// The format table. To add a format: its enumerator, one row here, and a layout in codec.cc.
#include "harness/numeric/format.h"

#include <array>
#include <cassert>

namespace mixroof {

namespace {

/// Exact for every exponent of a double, subnormals included.
constexpr double power_of_two(int exponent) {
  double value = 1;
  for (int i = 0; i < exponent; ++i) value *= 2;
  for (int i = 0; i > exponent; --i) value /= 2;
  return value;
}

/// A binary format with exponents `min_exponent` (of the smallest normal) to `max_exponent`. `top_missing` is how many
/// of the largest significands are taken by NaN: 1 in E4M3, which has no infinity, else 0.
constexpr FormatFacts binary(Format format, std::string_view name, int bytes, int mantissa_bits, int min_exponent,
                             int max_exponent, int top_missing = 0) {
  const double epsilon = power_of_two(-mantissa_bits);
  return {.format = format,
          .name = name,
          .bytes = bytes,
          .mantissa_bits = mantissa_bits,
          .max_finite = power_of_two(max_exponent) * (2 - epsilon * (1 + top_missing)),
          .min_normal = power_of_two(min_exponent),
          .min_subnormal = power_of_two(min_exponent) * epsilon,
          .epsilon = epsilon,
          .unit_roundoff = epsilon / 2,
          .has_infinity = top_missing == 0};
}

// int32 holds whole numbers only: the "spacing at 1" is 1 and nothing lies below it.
constexpr FormatFacts kInt32{.format = Format::int32,
                             .name = "int32",
                             .bytes = 4,
                             .mantissa_bits = 31,
                             .max_finite = 2147483647,
                             .min_normal = 1,
                             .min_subnormal = 1,
                             .epsilon = 1,
                             .unit_roundoff = 0.5,
                             .has_infinity = false};

// Exponents alone: 2^-127 to 2^127, no zero, no sign.
constexpr FormatFacts kE8m0{.format = Format::e8m0,
                            .name = "e8m0",
                            .bytes = 1,
                            .mantissa_bits = 0,
                            .max_finite = power_of_two(127),
                            .min_normal = power_of_two(-127),
                            .min_subnormal = power_of_two(-127),
                            .epsilon = 1,
                            .unit_roundoff = 1,
                            .has_infinity = false};

constexpr std::array<FormatFacts, kFormatCount> kFacts{
    binary(Format::fp32, "fp32", 4, 23, -126, 127),       binary(Format::tf32, "tf32", 4, 10, -126, 127),
    binary(Format::fp16, "fp16", 2, 10, -14, 15),         binary(Format::bf16, "bf16", 2, 7, -126, 127),
    binary(Format::fp8_e4m3, "fp8_e4m3", 1, 3, -6, 8, 1), binary(Format::fp8_e5m2, "fp8_e5m2", 1, 2, -14, 15),
    binary(Format::fp64, "fp64", 8, 52, -1022, 1023),     kInt32,                                    kE8m0,
};

constexpr std::array<Format, kFormatCount> kFormats = [] {
  std::array<Format, kFormatCount> formats{};
  for (int i = 0; i < kFormatCount; ++i) formats[i] = kFacts[i].format;
  return formats;
}();

static_assert(
    [] {
      for (int i = 0; i < kFormatCount; ++i)
        if (static_cast<int>(kFormats[i]) != i) return false;
      return true;
    }(),
    "rows follow the order of the enumeration");

}  // namespace

const FormatFacts& facts(Format format) {
  const auto index = static_cast<std::size_t>(format);
  assert(index < kFacts.size());
  return kFacts[index];
}

std::string_view name(Format format) { return facts(format).name; }

std::int64_t bytes_of(Format format) { return facts(format).bytes; }

std::optional<Format> parse_format(std::string_view name) {
  for (const FormatFacts& row : kFacts)
    if (row.name == name) return row.format;
  return std::nullopt;
}

std::span<const Format> all_formats() { return kFormats; }

}  // namespace mixroof
