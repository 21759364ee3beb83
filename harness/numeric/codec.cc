// The codecs. Every format below 32 bits is a Layout, and one branch-free conversion in integers serves all of them,
// from fp32 as from fp64. Array functions are loops over that conversion, compiled once per instruction set and chosen
// at run time, so that they give the bits of the scalar functions; fp16 has instructions of its own (F16C). To add a
// format: a Layout and its places in each path's row; to add a path: one row of kPaths.
#include "harness/numeric/codec.h"

#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "harness/status.h"

namespace mixroof {

namespace {

// Loops below are compiled for several instruction sets; what they call must become part of them.
#define MIXROOF_INLINE [[gnu::always_inline]] inline

/// Sign, exponent and mantissa of an IEEE-like format. Codes from `first_special` on are infinity and NaN, so that
/// overflow is a minimum: with infinity (or, in E4M3, the NaN) or with the largest finite code.
struct Layout {
  int bits;
  int mantissa_bits;
  int bias;
  std::uint32_t first_special;
};

constexpr Layout kFp16{16, 10, 15, 0x7C00};
constexpr Layout kE4m3{8, 3, 7, 0x7F};
constexpr Layout kE5m2{8, 2, 15, 0x7C};
// For single rounding from double; from fp32 these have shorter ways.
constexpr Layout kBf16{16, 7, 127, 0x7F80};
constexpr Layout kTf32{19, 10, 127, 0x3FC00};
constexpr Layout kFp32{32, 23, 127, 0x7F800000};

template <typename Bits>
struct Source;
template <>
struct Source<std::uint32_t> {
  static constexpr int kMantissaBits = 23, kBias = 127;
  static constexpr std::uint32_t kInfinity = 0x7F800000;
};
template <>
struct Source<std::uint64_t> {
  static constexpr int kMantissaBits = 52, kBias = 1023;
  static constexpr std::uint64_t kInfinity = 0x7FF0000000000000;
};

/// Bits of an fp32 or fp64 value to the code of the nearest value, ties to even. Magnitudes that round past `largest`
/// become `largest`. A NaN stays one, quiet, with its sign and the top of its payload.
template <Layout L, typename Bits>
MIXROOF_INLINE constexpr Bits encode_bits(Bits bits, Bits largest) {
  constexpr int kDropped = Source<Bits>::kMantissaBits - L.mantissa_bits;
  constexpr int kTopBit = std::numeric_limits<Bits>::digits - 1;
  constexpr Bits kHidden = Bits{1} << Source<Bits>::kMantissaBits;
  constexpr Bits kMinExponent = Source<Bits>::kBias - L.bias + 1;
  // The source's own subnormals get a hidden bit that they do not have; they must vanish all the same.
  static_assert(kMinExponent >= L.mantissa_bits + 2);

  const Bits magnitude = bits & ~(Bits{1} << kTopBit);
  const Bits exponent = magnitude >> Source<Bits>::kMantissaBits;
  const Bits significand = (magnitude & (kHidden - 1)) | kHidden;
  const Bits normal_exponent = std::max(exponent, kMinExponent);
  const Bits shift = std::min<Bits>(kDropped + (normal_exponent - exponent), kTopBit);
  const Bits rounded = (significand + ((Bits{1} << (shift - 1)) - 1) + ((significand >> shift) & 1)) >> shift;
  // A normal's hidden bit is in `rounded` and counts as exponent 1; a carry out of the mantissa raises the exponent.
  const Bits finite = std::min<Bits>(((normal_exponent - kMinExponent) << L.mantissa_bits) + rounded, largest);
  const Bits payload = (magnitude >> kDropped) & ((Bits{1} << L.mantissa_bits) - 1);
  const Bits nan = L.first_special | (Bits{1} << (L.mantissa_bits - 1)) | payload;
  const Bits sign = (bits >> kTopBit) << (L.bits - 1);
  return (magnitude > Source<Bits>::kInfinity ? nan : finite) | sign;
}

template <Layout L>
constexpr std::uint32_t largest_code(Overflow overflow) {
  return overflow == Overflow::ieee ? L.first_special : L.first_special - 1;
}

/// Code to fp32 bits, exact. A NaN becomes quiet.
template <Layout L>
MIXROOF_INLINE std::uint32_t decode_bits(std::uint32_t code) {
  constexpr std::uint32_t kMantissa = (1u << L.mantissa_bits) - 1;
  constexpr std::uint32_t kUnitExponent = 127 - L.bias - L.mantissa_bits;  // of the last mantissa bit, exponent field 0

  const std::uint32_t magnitude = code & ((1u << (L.bits - 1)) - 1);
  const std::uint32_t mantissa = magnitude & kMantissa;
  const std::uint32_t exponent = magnitude >> L.mantissa_bits;
  // Minima, joined by "or" below, instead of choices: the compiler would make branches around the product of them.
  const std::uint32_t is_normal = std::min(exponent, 1u);
  const std::uint32_t significand = mantissa | (is_normal << L.mantissa_bits);
  // The product of a small whole number and a power of two, neither of them subnormal: exact in any processor state.
  const auto whole = static_cast<float>(static_cast<std::int32_t>(significand));
  const auto unit = std::bit_cast<float>((exponent + 1 - is_normal + kUnitExponent) << 23);
  // Of infinity and NaN, `finite` has the right mantissa already.
  const auto finite = std::bit_cast<std::uint32_t>(whole * unit);
  const std::uint32_t quiet = std::min(mantissa, 1u) << 22;
  const std::uint32_t special = magnitude >= L.first_special ? 0x7F800000u | quiet : 0u;
  const std::uint32_t sign = (code >> (L.bits - 1)) << 31;
  return finite | special | sign;
}

/// fp32 bits with the lowest `dropped` bits rounded away (not yet cleared): same exponent range, so a carry is all that
/// can happen, up to infinity. NaN is only made quiet.
MIXROOF_INLINE std::uint32_t round_low_bits(std::uint32_t bits, int dropped) {
  const std::uint32_t rounded = bits + ((1u << (dropped - 1)) - 1) + ((bits >> dropped) & 1);
  return (bits & 0x7FFFFFFFu) > 0x7F800000u ? bits | 0x400000u : rounded;
}

// The conversions of the array loops, bits to bits.
MIXROOF_INLINE std::uint16_t fp16_of(std::uint32_t bits) {
  return static_cast<std::uint16_t>(encode_bits<kFp16>(bits, largest_code<kFp16>(Overflow::ieee)));
}
MIXROOF_INLINE std::uint16_t bf16_of(std::uint32_t bits) {
  return static_cast<std::uint16_t>(round_low_bits(bits, 16) >> 16);
}
MIXROOF_INLINE std::uint32_t tf32_of(std::uint32_t bits) { return round_low_bits(bits, 13) & ~0x1FFFu; }
MIXROOF_INLINE std::uint8_t e4m3_of(std::uint32_t bits) {
  return static_cast<std::uint8_t>(encode_bits<kE4m3>(bits, largest_code<kE4m3>(Overflow::saturate)));
}
MIXROOF_INLINE std::uint8_t e5m2_of(std::uint32_t bits) {
  return static_cast<std::uint8_t>(encode_bits<kE5m2>(bits, largest_code<kE5m2>(Overflow::saturate)));
}
/// 2^(exponent - 127) at or above a magnitude, as the exponent. fp32 subnormals above 2^-127 need the next one.
MIXROOF_INLINE std::uint8_t e8m0_of(std::uint32_t bits) {
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu, exponent = magnitude >> 23, mantissa = magnitude & 0x7FFFFFu;
  const std::uint32_t largest_below = exponent == 0 ? 0x400000u : 0u;
  return static_cast<std::uint8_t>(std::min(exponent + (mantissa > largest_below ? 1u : 0u), 255u));
}
MIXROOF_INLINE std::uint32_t from_e8m0(std::uint8_t code) {
  return code == 0 ? 0x400000u : code == 255 ? 0x7FC00000u : std::uint32_t{code} << 23;
}
MIXROOF_INLINE std::uint32_t from_fp16(std::uint16_t code) { return decode_bits<kFp16>(code); }
MIXROOF_INLINE std::uint32_t from_bf16(std::uint16_t code) { return std::uint32_t{code} << 16; }
MIXROOF_INLINE std::uint32_t from_e4m3(std::uint8_t code) { return decode_bits<kE4m3>(code); }
MIXROOF_INLINE std::uint32_t from_e5m2(std::uint8_t code) { return decode_bits<kE5m2>(code); }

/// A T that may lie anywhere and alias anything.
template <typename T>
struct [[gnu::packed, gnu::may_alias]] Unaligned {
  T value;
};

/// out[i] = convert(in[i]); `out` may be `in` itself.
template <typename In, typename Out, Out (*convert)(In)>
MIXROOF_INLINE void convert_array(const void* in, void* out, std::int64_t count) {
  if constexpr (std::is_same_v<In, Out>) {
    if (in == out) {
      auto* values = static_cast<Unaligned<In>*>(out);
      for (std::int64_t i = 0; i < count; ++i) values[i].value = convert(values[i].value);
      return;
    }
  }
  const auto* __restrict from = static_cast<const Unaligned<In>*>(in);
  auto* __restrict to = static_cast<Unaligned<Out>*>(out);
  for (std::int64_t i = 0; i < count; ++i) to[i].value = convert(from[i].value);
}

// convert_array for each instruction set: the same loop, vectorized by the compiler.
template <typename In, typename Out, Out (*convert)(In)>
void scalar(const void* in, void* out, std::int64_t count) {
  convert_array<In, Out, convert>(in, out, count);
}
template <typename In, typename Out, Out (*convert)(In)>
[[gnu::target("avx2")]] void avx2(const void* in, void* out, std::int64_t count) {
  convert_array<In, Out, convert>(in, out, count);
}
template <typename In, typename Out, Out (*convert)(In)>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void avx512(const void* in, void* out, std::int64_t count) {
  convert_array<In, Out, convert>(in, out, count);
}

// vcvtps2ph and vcvtph2ps with the rounding in the instruction: neither the rounding mode nor flush-to-zero nor
// denormals-are-zero reaches fp16's subnormals (fp32's own are below half of the least fp16 anyway), and NaN keeps the
// top of its payload and becomes quiet: the bits of encode_bits and decode_bits.
[[gnu::target("avx2,f16c")]] void encode_fp16_f16c(const void* in, void* out, std::int64_t count) {
  const auto* from = static_cast<const float*>(in);
  auto* to = static_cast<std::uint16_t*>(out);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i_u*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  convert_array<std::uint32_t, std::uint16_t, fp16_of>(from + i, to + i, count - i);
}
[[gnu::target("avx2,f16c")]] void decode_fp16_f16c(const void* in, void* out, std::int64_t count) {
  const auto* from = static_cast<const std::uint16_t*>(in);
  auto* to = static_cast<float*>(out);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(from + i))));
  convert_array<std::uint16_t, std::uint32_t, from_fp16>(from + i, to + i, count - i);
}

using ArrayFunction = void (*)(const void* in, void* out, std::int64_t count);

/// The array functions of one instruction set.
struct Path {
  std::string_view name;
  bool (*runs_here)();
  ArrayFunction encode_fp16, encode_bf16, encode_tf32, encode_e4m3, encode_e5m2;
  ArrayFunction decode_fp16, decode_bf16, decode_e4m3, decode_e5m2;
};

// Not every compiler knows F16C by name; that the system saves the wide registers is in the answer for AVX2.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}
bool has_avx2() { return __builtin_cpu_supports("avx2") && has_f16c(); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;

// Best first; the last one runs everywhere.
constexpr Path kPaths[] = {
    {"avx512", has_avx512,  //
     encode_fp16_f16c, avx512<u32, u16, bf16_of>, avx512<u32, u32, tf32_of>, avx512<u32, u8, e4m3_of>,
     avx512<u32, u8, e5m2_of>,  //
     decode_fp16_f16c, avx512<u16, u32, from_bf16>, avx512<u8, u32, from_e4m3>, avx512<u8, u32, from_e5m2>},
    {"avx2", has_avx2,  //
     encode_fp16_f16c, avx2<u32, u16, bf16_of>, avx2<u32, u32, tf32_of>, avx2<u32, u8, e4m3_of>,
     avx2<u32, u8, e5m2_of>,  //
     decode_fp16_f16c, avx2<u16, u32, from_bf16>, avx2<u8, u32, from_e4m3>, avx2<u8, u32, from_e5m2>},
    {"scalar", [] { return true; },  //
     scalar<u32, u16, fp16_of>, scalar<u32, u16, bf16_of>, scalar<u32, u32, tf32_of>, scalar<u32, u8, e4m3_of>,
     scalar<u32, u8, e5m2_of>,  //
     scalar<u16, u32, from_fp16>, scalar<u16, u32, from_bf16>, scalar<u8, u32, from_e4m3>, scalar<u8, u32, from_e5m2>},
};

const Path& best_path() {
  return *std::find_if(std::begin(kPaths), std::end(kPaths), [](const Path& path) { return path.runs_here(); });
}

std::atomic<const Path*>& chosen_path() {
  static std::atomic<const Path*> path{&best_path()};
  return path;
}

const Path& path_now() { return *chosen_path().load(std::memory_order_relaxed); }

/// The array function that turns fp32 into a format (`encoding`) or back; none where there is nothing to compute.
ArrayFunction array_function(const Path& path, Format format, bool encoding) {
  switch (format) {
    case Format::fp16:
      return encoding ? path.encode_fp16 : path.decode_fp16;
    case Format::bf16:
      return encoding ? path.encode_bf16 : path.decode_bf16;
    case Format::tf32:
      return encoding ? path.encode_tf32 : nullptr;
    case Format::fp8_e4m3:
      return encoding ? path.encode_e4m3 : path.decode_e4m3;
    case Format::fp8_e5m2:
      return encoding ? path.encode_e5m2 : path.decode_e5m2;
    case Format::fp32:
    case Format::fp64:
    case Format::int32:
    case Format::e8m0:
      return nullptr;
  }
  return nullptr;
}

void copy_fp32(const void* in, void* out, std::int64_t count) {
  // An empty array may have no address, and memmove must not be given none.
  if (count > 0) std::memmove(out, in, static_cast<std::size_t>(count) * sizeof(float));
}

/// Values that are not whole numbers of an int32 are a caller's mistake; they round and clamp, NaN becomes 0.
std::int32_t to_int32(double value) {
  if (std::isnan(value)) return 0;
  return static_cast<std::int32_t>(std::clamp(std::nearbyint(value), -2147483648.0, 2147483647.0));
}

template <typename In, typename Out, typename Convert>
void convert_each(const void* in, void* out, std::int64_t count, Convert convert) {
  const auto* from = static_cast<const Unaligned<In>*>(in);
  auto* to = static_cast<Unaligned<Out>*>(out);
  for (std::int64_t i = 0; i < count; ++i) to[i].value = convert(from[i].value);
}

template <Layout L>
std::uint32_t encode_double(double value, Overflow overflow) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  return static_cast<std::uint32_t>(encode_bits<L, std::uint64_t>(bits, largest_code<L>(overflow)));
}

/// A double between two powers of two is above the lower one by more than fp32 may tell.
std::uint8_t encode_e8m0_double(double value) {
  const double magnitude = std::fabs(value);
  if (!(magnitude <= 0x1p127)) return 255;
  if (magnitude <= 0x1p-127) return 0;
  const int exponent = std::ilogb(magnitude);
  return static_cast<std::uint8_t>(exponent + 127 + (magnitude > std::ldexp(1.0, exponent) ? 1 : 0));
}

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

}  // namespace

std::uint16_t encode_fp16(float value) { return fp16_of(bits_of(value)); }
std::uint16_t encode_bf16(float value) { return bf16_of(bits_of(value)); }
std::uint8_t encode_fp8_e4m3(float value, Overflow overflow) {
  return static_cast<std::uint8_t>(encode_bits<kE4m3>(bits_of(value), largest_code<kE4m3>(overflow)));
}
std::uint8_t encode_fp8_e5m2(float value, Overflow overflow) {
  return static_cast<std::uint8_t>(encode_bits<kE5m2>(bits_of(value), largest_code<kE5m2>(overflow)));
}
std::uint8_t encode_e8m0(float value) { return e8m0_of(bits_of(value)); }
float round_tf32(float value) { return float_of(tf32_of(bits_of(value))); }

float decode_fp16(std::uint16_t code) { return float_of(from_fp16(code)); }
float decode_bf16(std::uint16_t code) { return float_of(from_bf16(code)); }
float decode_fp8_e4m3(std::uint8_t code) { return float_of(from_e4m3(code)); }
float decode_fp8_e5m2(std::uint8_t code) { return float_of(from_e5m2(code)); }
float decode_e8m0(std::uint8_t code) { return float_of(from_e8m0(code)); }

double round_to(Format format, double value) {
  switch (format) {
    case Format::fp32:
      return float_of(encode_double<kFp32>(value, Overflow::ieee));
    case Format::tf32:
      return float_of(encode_double<kTf32>(value, Overflow::ieee) << 13);
    case Format::fp16:
      return float_of(decode_bits<kFp16>(encode_double<kFp16>(value, Overflow::ieee)));
    case Format::bf16:
      return float_of(encode_double<kBf16>(value, Overflow::ieee) << 16);
    case Format::fp8_e4m3:
      return float_of(decode_bits<kE4m3>(encode_double<kE4m3>(value, Overflow::saturate)));
    case Format::fp8_e5m2:
      return float_of(decode_bits<kE5m2>(encode_double<kE5m2>(value, Overflow::saturate)));
    case Format::fp64:
      return value;
    case Format::int32:
      return to_int32(value);
    case Format::e8m0:
      return decode_e8m0(encode_e8m0_double(value));
  }
  return value;
}

void encode(Format to, const float* in, void* out, std::int64_t count) {
  if (const ArrayFunction function = array_function(path_now(), to, true)) return function(in, out, count);
  switch (to) {
    case Format::fp64:
      return convert_each<float, double>(in, out, count, [](float v) { return double{v}; });
    case Format::int32:
      return convert_each<float, std::int32_t>(in, out, count, [](float v) { return to_int32(v); });
    case Format::e8m0:
      return convert_each<float, u8>(in, out, count, encode_e8m0);
    default:
      return copy_fp32(in, out, count);
  }
}

void decode(Format from, const void* in, float* out, std::int64_t count) {
  if (const ArrayFunction function = array_function(path_now(), from, false)) return function(in, out, count);
  switch (from) {
    case Format::fp64:
      return convert_each<double, float>(in, out, count,
                                         [](double v) { return float_of(encode_double<kFp32>(v, Overflow::ieee)); });
    case Format::int32:
      return convert_each<std::int32_t, float>(in, out, count, [](std::int32_t v) { return static_cast<float>(v); });
    case Format::e8m0:
      return convert_each<u8, float>(in, out, count, decode_e8m0);
    default:
      return copy_fp32(in, out, count);
  }
}

void encode(Format to, const double* in, void* out, std::int64_t count) {
  const auto each = [&]<typename Out>(Out (*convert)(double)) { convert_each<double, Out>(in, out, count, convert); };
  switch (to) {
    case Format::fp32:
      return each(+[](double v) { return encode_double<kFp32>(v, Overflow::ieee); });
    case Format::tf32:
      return each(+[](double v) { return encode_double<kTf32>(v, Overflow::ieee) << 13; });
    case Format::fp16:
      return each(+[](double v) { return static_cast<u16>(encode_double<kFp16>(v, Overflow::ieee)); });
    case Format::bf16:
      return each(+[](double v) { return static_cast<u16>(encode_double<kBf16>(v, Overflow::ieee)); });
    case Format::fp8_e4m3:
      return each(+[](double v) { return static_cast<u8>(encode_double<kE4m3>(v, Overflow::saturate)); });
    case Format::fp8_e5m2:
      return each(+[](double v) { return static_cast<u8>(encode_double<kE5m2>(v, Overflow::saturate)); });
    case Format::fp64:
      return each(+[](double v) { return v; });
    case Format::int32:
      return each(+[](double v) { return to_int32(v); });
    case Format::e8m0:
      return each(+[](double v) { return encode_e8m0_double(v); });
  }
}

void decode(Format from, const void* in, double* out, std::int64_t count) {
  const auto each = [&]<typename In>(double (*convert)(In)) { convert_each<In, double>(in, out, count, convert); };
  switch (from) {
    case Format::fp32:
    case Format::tf32:
      return each(+[](float v) { return double{v}; });
    case Format::fp16:
      return each(+[](u16 v) { return double{decode_fp16(v)}; });
    case Format::bf16:
      return each(+[](u16 v) { return double{decode_bf16(v)}; });
    case Format::fp8_e4m3:
      return each(+[](u8 v) { return double{decode_fp8_e4m3(v)}; });
    case Format::fp8_e5m2:
      return each(+[](u8 v) { return double{decode_fp8_e5m2(v)}; });
    case Format::fp64:
      return each(+[](double v) { return v; });
    case Format::int32:
      return each(+[](std::int32_t v) { return static_cast<double>(v); });
    case Format::e8m0:
      return each(+[](u8 v) { return double{decode_e8m0(v)}; });
  }
}

std::vector<std::string> codec_paths() {
  std::vector<std::string> names;
  for (const Path& path : kPaths)
    if (path.runs_here()) names.emplace_back(path.name);
  return names;
}

void force_codec_path(const std::string& name) {
  if (name.empty()) return chosen_path().store(&best_path());
  for (const Path& path : kPaths)
    if (path.name == name && path.runs_here()) return chosen_path().store(&path);
  throw_unknown("codec path", name, codec_paths(), "mixroof doctor");
}

std::string codec_path(Format format) {
  const Path& path = array_function(path_now(), format, true) ? path_now() : std::end(kPaths)[-1];
  return std::string(path.name);
}

}  // namespace mixroof
