// Number formats: what each one can represent. To add a format: one row in format.cc and a codec in codec.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mixroof {

/// tf32 is a compute format only: its values are stored as fp32. fp64 and int32 are storage of references, counters and
/// token ids, e8m0 of block scales (powers of two); no recipe computes in them.
enum class Format : std::uint8_t { fp32, tf32, fp16, bf16, fp8_e4m3, fp8_e5m2, fp64, int32, e8m0 };
inline constexpr int kFormatCount = 9;

/// Limits of a format. Sources: IEEE 754-2019 (fp16, fp32, fp64); OCP OFP8 rev. 1.0 (E4M3 without infinity, E5M2); OCP
/// Microscaling Formats (MX) rev. 1.0 (E8M0); bf16 and tf32 are fp32 with 7 and 10 stored mantissa bits.
struct FormatFacts {
  Format format;
  std::string_view name;
  int bytes;            // of one stored value
  int mantissa_bits;    // stored, without the hidden bit
  double max_finite;
  double min_normal;
  double min_subnormal;
  double epsilon;        // spacing at 1
  double unit_roundoff;  // epsilon / 2
  bool has_infinity;
};

const FormatFacts& facts(Format format);
std::string_view name(Format format);
std::int64_t bytes_of(Format format);
std::optional<Format> parse_format(std::string_view name);
std::span<const Format> all_formats();
inline bool is_fp8(Format f) { return f == Format::fp8_e4m3 || f == Format::fp8_e5m2; }
inline bool is_16_bit(Format f) { return f == Format::fp16 || f == Format::bf16; }

}  // namespace mixroof
