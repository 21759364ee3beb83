// The conversions by name: from fp32 bits to codes of a format as integers, whatever its width, and back.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "harness/numeric/codec.h"

namespace mixroof {

inline std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// A scalar encoder over fp32 bits, and which of its codes are NaN.
struct ScalarEncoder {
  std::string name;  // the format; FP8 has one encoder per overflow policy: "fp8_e4m3_ieee"
  Format format;
  std::uint32_t (*encode)(float value);
  bool in_arrays;  // whether the array functions give these codes
  std::uint32_t magnitude_mask;
  std::uint32_t largest_number;  // magnitudes above it are NaN

  bool is_nan(std::uint32_t code) const { return (code & magnitude_mask) > largest_number; }
};

inline const std::vector<ScalarEncoder>& scalar_encoders() {
  static const std::vector<ScalarEncoder> encoders{
      {"fp16", Format::fp16, [](float v) -> std::uint32_t { return encode_fp16(v); }, true, 0x7FFF, 0x7C00},
      {"bf16", Format::bf16, [](float v) -> std::uint32_t { return encode_bf16(v); }, true, 0x7FFF, 0x7F80},
      {"tf32_rne", Format::tf32, [](float v) { return bits_of(round_tf32(v)); }, true, 0x7FFFFFFF, 0x7F800000},
      {"fp8_e4m3_ieee", Format::fp8_e4m3, [](float v) -> std::uint32_t { return encode_fp8_e4m3(v, Overflow::ieee); },
       false, 0x7F, 0x7E},
      {"fp8_e4m3_saturating", Format::fp8_e4m3,
       [](float v) -> std::uint32_t { return encode_fp8_e4m3(v, Overflow::saturate); }, true, 0x7F, 0x7E},
      {"fp8_e5m2_ieee", Format::fp8_e5m2, [](float v) -> std::uint32_t { return encode_fp8_e5m2(v, Overflow::ieee); },
       false, 0x7F, 0x7C},
      {"fp8_e5m2_saturating", Format::fp8_e5m2,
       [](float v) -> std::uint32_t { return encode_fp8_e5m2(v, Overflow::saturate); }, true, 0x7F, 0x7C},
  };
  return encoders;
}

inline float decode_one(Format format, std::uint32_t code) {
  switch (format) {
    case Format::fp16:
      return decode_fp16(static_cast<std::uint16_t>(code));
    case Format::bf16:
      return decode_bf16(static_cast<std::uint16_t>(code));
    case Format::fp8_e4m3:
      return decode_fp8_e4m3(static_cast<std::uint8_t>(code));
    case Format::fp8_e5m2:
      return decode_fp8_e5m2(static_cast<std::uint8_t>(code));
    default:
      return float_of(code);
  }
}

/// Code `index` of an encoded array.
inline std::uint32_t code_at(Format format, const void* codes, std::int64_t index) {
  std::uint32_t code = 0;  // the formats' bytes are the low ones
  std::memcpy(&code, static_cast<const char*>(codes) + index * bytes_of(format),
              static_cast<std::size_t>(bytes_of(format)));
  return code;
}

/// Calls `body` once under each array path of this processor, then lets the best be chosen again.
inline void for_each_codec_path(const std::function<void(const std::string& path)>& body) {
  for (const std::string& path : codec_paths()) {
    force_codec_path(path);
    body(path);
  }
  force_codec_path({});
}

}  // namespace mixroof
