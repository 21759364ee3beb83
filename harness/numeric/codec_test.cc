// Codecs without an oracle: cases worked by hand, round trips of every code, an independent rounding in double, and
// every array path against the scalar functions. harness/oracle/formats.cc compares with stored truth.
#include "harness/numeric/codec.h"

#include <gtest/gtest.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "harness/numeric/conversions.h"
#include "harness/status.h"

namespace mixroof {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr Format kNarrow[] = {Format::fp16, Format::bf16, Format::fp8_e4m3, Format::fp8_e5m2};

float through_e4m3(float value) { return decode_fp8_e4m3(encode_fp8_e4m3(value)); }

TEST(Codec, NUM1_E4m3_SaturatesAndRoundsTiesToEven) {
  EXPECT_EQ(through_e4m3(447), 448);  // spacing 32: 447 is nearest to 448
  EXPECT_EQ(through_e4m3(448), 448);
  EXPECT_EQ(through_e4m3(449), 448);
  EXPECT_EQ(through_e4m3(464), 448);  // midpoint of 448 and 480, which is the NaN
  EXPECT_EQ(through_e4m3(465), 448);
  EXPECT_EQ(through_e4m3(480), 448);
  EXPECT_EQ(through_e4m3(1000), 448);
  EXPECT_EQ(through_e4m3(-1000), -448);
  EXPECT_EQ(through_e4m3(kInf), 448);
  EXPECT_EQ(through_e4m3(-kInf), -448);
  EXPECT_TRUE(std::isnan(through_e4m3(kNan)));
  EXPECT_EQ(through_e4m3(0x1p-10f), 0);  // half of the least subnormal 2^-9: tie to even
  EXPECT_EQ(through_e4m3(0x1p-10f * 1.0001f), 0x1p-9f);
  EXPECT_EQ(through_e4m3(1.5f * 0x1p-9f), 0x1p-8f);  // tie between 1 and 2 units: to 2
}

TEST(Codec, NUM1_E4m3_UnderTheIeeePolicy_OverflowIsNan) {
  EXPECT_EQ(encode_fp8_e4m3(464, Overflow::ieee), 0x7E);
  EXPECT_EQ(encode_fp8_e4m3(std::nextafter(464.0f, kInf), Overflow::ieee), 0x7F);
  EXPECT_EQ(encode_fp8_e4m3(-kInf, Overflow::ieee), 0xFF);
  EXPECT_EQ(encode_fp8_e5m2(61440, Overflow::ieee), 0x7C);  // midpoint of 57344 and 65536, which is the infinity
  EXPECT_EQ(encode_fp8_e5m2(61440, Overflow::saturate), 0x7B);
  EXPECT_EQ(encode_fp8_e5m2(-kInf, Overflow::ieee), 0xFC);
  EXPECT_EQ(encode_fp8_e5m2(-kInf, Overflow::saturate), 0xFB);
}

TEST(Codec, NUM1_E4m3_HasTwoNansAndNoInfinity) {
  int nans = 0;
  float largest = 0, smallest = kInf;
  for (int code = 0; code < 256; ++code) {
    const float value = decode_fp8_e4m3(static_cast<std::uint8_t>(code));
    EXPECT_FALSE(std::isinf(value)) << code;
    nans += std::isnan(value);
    if (value > largest) largest = value;
    if (value > 0 && value < smallest) smallest = value;
  }
  EXPECT_EQ(nans, 2);
  EXPECT_TRUE(std::isnan(decode_fp8_e4m3(0x7F)) && std::isnan(decode_fp8_e4m3(0xFF)));
  EXPECT_EQ(largest, 448);
  EXPECT_EQ(smallest, 0x1p-9f);
}

TEST(Codec, NUM2_Bf16_RoundsAndKeepsEveryNan) {
  EXPECT_EQ(encode_bf16(float_of(0x3E89CCD5)), 0x3E8A);
  EXPECT_EQ(decode_bf16(0x3E8A), 0.26953125f);
  EXPECT_EQ(decode_bf16(encode_bf16(float_of(0x7F7FFFFF))), kInf);
  EXPECT_EQ(decode_bf16(encode_bf16(float_of(0x7F800000))), kInf);
  for (const std::uint32_t nan : {0x7F800001u, 0x7FFF8C22u, 0xFFFFFFFFu})
    EXPECT_TRUE(std::isnan(decode_bf16(encode_bf16(float_of(nan))))) << nan;
}

TEST(Codec, NanOfEveryPayload_StaysAQuietNanOfItsSign) {
  for (const ScalarEncoder& encoder : scalar_encoders())
    for (std::uint32_t payload = 1; payload < (1u << 23); payload = payload * 3 + 1)
      for (const std::uint32_t sign : {0u, 0x80000000u}) {
        const std::uint32_t code = encoder.encode(float_of(sign | 0x7F800000u | payload));
        EXPECT_TRUE(encoder.is_nan(code)) << encoder.name << " payload " << payload;
        EXPECT_EQ((code & ~encoder.magnitude_mask) != 0, sign != 0) << encoder.name << " payload " << payload;
      }
}

TEST(Codec, ZeroKeepsItsSign) {
  for (const ScalarEncoder& encoder : scalar_encoders()) {
    EXPECT_EQ(encoder.encode(0.0f), 0u) << encoder.name;
    EXPECT_EQ(encoder.encode(-0.0f), encoder.magnitude_mask + 1) << encoder.name;
    EXPECT_EQ(encoder.encode(-std::numeric_limits<float>::denorm_min()), encoder.magnitude_mask + 1) << encoder.name;
  }
}

TEST(Codec, EveryCode_DecodesToAValueThatEncodesToIt) {
  for (const ScalarEncoder& encoder : scalar_encoders()) {
    if (encoder.format == Format::tf32) continue;  // has no codes of its own
    for (std::uint32_t code = 0; code <= 2 * encoder.magnitude_mask + 1; ++code) {
      const float value = decode_one(encoder.format, code);
      const bool saturates = is_fp8(encoder.format) && encoder.in_arrays;
      if (encoder.is_nan(code)) {
        EXPECT_TRUE(std::isnan(value)) << encoder.name << " code " << code;
      } else if (std::isinf(value) && saturates) {
        EXPECT_EQ(encoder.encode(value), code - 1) << encoder.name << " code " << code;
      } else {
        EXPECT_EQ(encoder.encode(value), code) << encoder.name << " code " << code;
      }
    }
  }
}

TEST(Codec, DecodedCodes_GrowWithTheCode) {
  for (const ScalarEncoder& encoder : scalar_encoders()) {
    if (encoder.format == Format::tf32) continue;
    for (std::uint32_t code = 1; code <= encoder.largest_number; ++code)
      ASSERT_LT(decode_one(encoder.format, code - 1), decode_one(encoder.format, code)) << encoder.name << " " << code;
  }
}

TEST(Codec, NUM4_Tf32_DropsThirteenBitsTiesToEven) {
  EXPECT_EQ(round_tf32(1 + 0x1p-11f), 1);                     // tie between 1 and 1 + 2^-10: to even
  EXPECT_EQ(round_tf32(1 + 3 * 0x1p-11f), 1 + 2 * 0x1p-10f);  // cases.md NUM-4: 1.001953125
  EXPECT_EQ(round_tf32(std::numeric_limits<float>::max()), kInf);
  EXPECT_EQ(bits_of(round_tf32(float_of(0x1001))), 0x2000u);  // subnormals stay
}

/// Nearest value of a format, ties to even, by division: exact, since quotient and product only shift the exponent.
double nearest(Format format, double value) {
  const FormatFacts& f = facts(format);
  if (std::isnan(value)) return value;
  double rounded = value;
  if (std::isfinite(value)) {
    const int exponent = std::max(std::ilogb(value == 0 ? f.min_normal : value), std::ilogb(f.min_normal));
    const double unit = std::ldexp(1, exponent - f.mantissa_bits);
    rounded = std::nearbyint(value / unit) * unit;
  }
  if (std::abs(rounded) <= f.max_finite) return rounded;
  return std::copysign(is_fp8(format) ? f.max_finite : kInf, value);
}

TEST(RoundTo, AgreesWithDivisionByTheSpacing_ForDoublesOfEverySize) {
  std::mt19937_64 random(1);
  for (const Format format :
       {Format::fp32, Format::tf32, Format::fp16, Format::bf16, Format::fp8_e4m3, Format::fp8_e5m2}) {
    const FormatFacts& f = facts(format);
    const int low = std::ilogb(f.min_subnormal) - 3, high = std::ilogb(f.max_finite) + 3;
    for (int i = 0; i < 20000; ++i) {
      double mantissa = 1 + std::ldexp(static_cast<double>(random() >> 12), -52);
      if (i % 2)  // on and beside midpoints
        mantissa = std::ldexp(std::floor(std::ldexp(mantissa, f.mantissa_bits + 1)), -f.mantissa_bits - 1) +
                   (static_cast<int>(random() % 3) - 1) * 0x1p-52;
      const int exponent = low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
      const double value = std::ldexp(random() % 2 ? mantissa : -mantissa, exponent);
      ASSERT_EQ(round_to(format, value), nearest(format, value)) << name(format) << " " << value;
    }
  }
}

TEST(RoundTo, RoundsOnceAndNotThroughFp32) {
  // 1 + 2^-11 is the midpoint of two fp16 values; the added 2^-40 says "up", but fp32 would drop it.
  EXPECT_EQ(round_to(Format::fp16, 1 + 0x1p-11 + 0x1p-40), 1 + 0x1p-10);
  EXPECT_EQ(decode_fp16(encode_fp16(static_cast<float>(1 + 0x1p-11 + 0x1p-40))), 1);
  EXPECT_EQ(round_to(Format::bf16, 1 + 0x1p-8 + 0x1p-40), 1 + 0x1p-7);
}

TEST(RoundTo, KeepsInfinityAndNan_ExceptWhereItSaturates) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const Format format : {Format::fp64, Format::fp32, Format::tf32, Format::fp16, Format::bf16}) {
    EXPECT_EQ(round_to(format, -inf), -inf) << name(format);
    EXPECT_TRUE(std::isnan(round_to(format, std::nan("")))) << name(format);
  }
  EXPECT_EQ(round_to(Format::fp8_e4m3, -inf), -448);
  EXPECT_EQ(round_to(Format::fp8_e5m2, 1e300), 57344);
  EXPECT_TRUE(std::isnan(round_to(Format::fp8_e4m3, std::nan(""))));
  EXPECT_EQ(round_to(Format::fp64, 0x1.23456789p-1000), 0x1.23456789p-1000);
  EXPECT_EQ(round_to(Format::int32, -7.0), -7);
  EXPECT_EQ(round_to(Format::int32, 1e10), 2147483647);
}

/// Every upper half of an fp32 pattern with lower halves on, beside and between the midpoints of all formats.
const std::vector<float>& telling_inputs() {
  static const std::vector<float> inputs = [] {
    std::vector<float> values;
    for (std::uint32_t high = 0; high < 0x10000; ++high)
      for (const std::uint32_t low :
           {0x0000u, 0x0001u, 0x0FFFu, 0x1000u, 0x1001u, 0x3000u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
        values.push_back(float_of(high << 16 | low));
    return values;
  }();
  return inputs;
}

TEST(CodecPaths, Encode_GivesTheScalarBits) {
  const std::vector<float>& in = telling_inputs();
  const auto count = static_cast<std::int64_t>(in.size());
  std::vector<std::uint32_t> codes(in.size());
  for_each_codec_path([&](const std::string& path) {
    for (const ScalarEncoder& encoder : scalar_encoders()) {
      if (!encoder.in_arrays) continue;
      encode(encoder.format, in.data(), codes.data(), count);
      for (std::int64_t i = 0; i < count; ++i)
        ASSERT_EQ(code_at(encoder.format, codes.data(), i), encoder.encode(in[i]))
            << path << " " << encoder.name << " of bits " << bits_of(in[i]);
    }
  });
}

TEST(CodecPaths, Decode_GivesTheScalarBitsOfEveryCode) {
  for_each_codec_path([&](const std::string& path) {
    for (const Format format : kNarrow) {
      const std::int64_t count = bytes_of(format) == 2 ? 0x10000 : 0x100;
      std::vector<std::uint16_t> codes(static_cast<std::size_t>(count));
      for (std::int64_t i = 0; i < count; ++i)
        std::memcpy(reinterpret_cast<char*>(codes.data()) + i * bytes_of(format), &i,
                    static_cast<std::size_t>(bytes_of(format)));
      std::vector<float> out(codes.size());
      decode(format, codes.data(), out.data(), count);
      for (std::int64_t i = 0; i < count; ++i)
        ASSERT_EQ(bits_of(out[i]), bits_of(decode_one(format, static_cast<std::uint32_t>(i))))
            << path << " " << name(format) << " code " << i;
    }
  });
}

/// A stretch of bytes with guards on both sides, starting `offset` bytes off its alignment.
class Guarded {
 public:
  Guarded(std::int64_t bytes, std::int64_t offset)
      : begin_(kGuard + offset), bytes_(bytes), store_(static_cast<std::size_t>(2 * kGuard + offset + bytes), kFill) {}
  unsigned char* data() { return store_.data() + begin_; }
  bool intact() const {
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(store_.size()); ++i)
      if ((i < begin_ || i >= begin_ + bytes_) && store_[i] != kFill) return false;
    return true;
  }

 private:
  static constexpr std::int64_t kGuard = 64;
  static constexpr unsigned char kFill = 0xA5;
  std::int64_t begin_, bytes_;
  std::vector<unsigned char> store_;
};

TEST(CodecPaths, AnyLengthAndAlignment_WritesTheArrayAndNothingElse) {
  const std::vector<float>& values = telling_inputs();
  const std::int64_t first = 0x3F00 * 10;  // ordinary numbers around 0.5
  for_each_codec_path([&](const std::string& path) {
    for (const Format format : all_formats())
      for (std::int64_t count = 0; count <= 131; ++count)
        for (const std::int64_t offset : {0, 1, 3}) {
          SCOPED_TRACE(path + " " + std::string(name(format)) + " count " + std::to_string(count) + " offset " +
                       std::to_string(offset));
          Guarded in(count * 4, offset), codes(count * bytes_of(format), offset), out(count * 4, offset);
          std::memcpy(in.data(), values.data() + first, static_cast<std::size_t>(count) * 4);
          encode(format, reinterpret_cast<const float*>(in.data()), codes.data(), count);
          decode(format, codes.data(), reinterpret_cast<float*>(out.data()), count);
          ASSERT_TRUE(codes.intact() && out.intact());
          for (std::int64_t i = 0; i < count; ++i)
            ASSERT_EQ(float_of(code_at(Format::fp32, out.data(), i)), round_to(format, values[first + i])) << i;
        }
  });
}

TEST(CodecPaths, Tf32AndFp32_WorkInPlace) {
  for_each_codec_path([&](const std::string& path) {
    std::vector<float> values(telling_inputs().begin(), telling_inputs().begin() + 1001);
    const std::vector<float> before = values;
    encode(Format::fp32, values.data(), values.data(), 1001);
    encode(Format::tf32, values.data(), values.data(), 1001);
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(bits_of(values[i]), bits_of(round_tf32(before[i]))) << path;
  });
}

/// Flush-to-zero, denormals-are-zero and rounding up, as a library built with fast-math or a careless caller leaves
/// them.
class HostileProcessorState {
 public:
  HostileProcessorState() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040 | _MM_ROUND_UP); }
  ~HostileProcessorState() { _mm_setcsr(before_); }

 private:
  unsigned before_;
};

TEST(CodecPaths, TheProcessorsRoundingAndFlushing_ChangeNothing) {
  const std::vector<float>& in = telling_inputs();
  const auto count = static_cast<std::int64_t>(in.size());
  for_each_codec_path([&](const std::string& path) {
    for (const Format format : {Format::tf32, Format::fp16, Format::bf16, Format::fp8_e4m3, Format::fp8_e5m2}) {
      const auto codes_and_values = [&] {
        std::vector<std::uint32_t> codes(in.size());
        encode(format, in.data(), codes.data(), count);
        std::vector<float> out(in.size());
        decode(format, codes.data(), out.data(), count);
        for (const float value : out) codes.push_back(bits_of(value));
        return codes;
      };
      const auto calm = codes_and_values();
      const HostileProcessorState hostile;
      EXPECT_TRUE(codes_and_values() == calm) << path << " " << name(format);
    }
  });
}

TEST(CodecPaths, ScalarIsAlwaysThere_AndForcingAnUnknownPathIsRefused) {
  ASSERT_FALSE(codec_paths().empty());
  EXPECT_EQ(codec_paths().back(), "scalar");
  EXPECT_THROW(force_codec_path("abacus"), UsageError);
  force_codec_path("scalar");
  EXPECT_EQ(codec_path(Format::bf16), "scalar");
  force_codec_path({});
  EXPECT_EQ(codec_path(Format::bf16), codec_paths().front());
  EXPECT_EQ(codec_path(Format::fp64), "scalar");  // has nothing to choose
}

TEST(CodecOfDoubles, EncodeRoundsOnce_DecodeIsExact) {
  std::mt19937_64 random(2);
  std::normal_distribution<double> normal(0, 3);
  std::vector<double> values(1001);
  for (double& value : values) value = normal(random);
  values[0] = 1 + 0x1p-11 + 0x1p-40;
  for (const Format format : all_formats()) {
    std::vector<double> codes(values.size()), back(values.size());
    encode(format, values.data(), codes.data(), 1001);
    decode(format, codes.data(), back.data(), 1001);
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(back[i], round_to(format, values[i])) << name(format) << " " << values[i];
  }
}

TEST(Codec, TokenIdsPassThroughFp32AndDouble) {
  const std::int32_t ids[] = {0, -1, 50256, 1 << 24, 2147483647};
  float singles[5];
  double doubles[5];
  std::int32_t back[5];
  decode(Format::int32, ids, doubles, 5);
  encode(Format::int32, doubles, back, 5);
  EXPECT_EQ(0, std::memcmp(ids, back, sizeof ids));
  decode(Format::int32, ids, singles, 4);  // exact up to 2^24
  encode(Format::int32, singles, back, 4);
  EXPECT_EQ(0, std::memcmp(ids, back, 4 * sizeof(std::int32_t)));
}

TEST(Codec, Fp64ToFp32_RoundsToNearest) {
  const double values[] = {1 + 0x1p-24, 1 + 3 * 0x1p-24, 1e300, 0x1p-149, -0.0};
  float out[5];
  decode(Format::fp64, values, out, 5);
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(out[1], 1 + 0x1p-22f);
  EXPECT_EQ(out[2], kInf);
  EXPECT_EQ(out[3], 0x1p-149f);
  EXPECT_TRUE(std::signbit(out[4]));
}

TEST(Codec, EmptyArrays_MayHaveNoAddress) {  // red under the sanitizers when a copy is given a null pointer
  for (const Format format : all_formats()) {
    encode(format, static_cast<const float*>(nullptr), nullptr, 0);
    decode(format, nullptr, static_cast<float*>(nullptr), 0);
    encode(format, static_cast<const double*>(nullptr), nullptr, 0);
    decode(format, nullptr, static_cast<double*>(nullptr), 0);
  }
}

TEST(Codec, E8m0_IsThePowerOfTwoAtOrAbove) {
  for (int code = 0; code < 255; ++code) {
    const float value = decode_e8m0(static_cast<std::uint8_t>(code));
    EXPECT_EQ(value, std::ldexp(1.0f, code - 127));
    EXPECT_EQ(encode_e8m0(value), code);
    EXPECT_EQ(encode_e8m0(-value), code) << "no sign";
    EXPECT_EQ(round_to(Format::e8m0, value), value);
    if (code == 254) continue;
    EXPECT_EQ(encode_e8m0(std::nextafter(value, kInf)), code + 1);
    EXPECT_EQ(round_to(Format::e8m0, value * (1 + 0x1p-40)), 2 * static_cast<double>(value));
  }
  EXPECT_EQ(encode_e8m0(0), 0);
  EXPECT_EQ(encode_e8m0(0x1p-149f), 0);
  for (const float beyond : {0x1.8p127f, kInf, std::numeric_limits<float>::quiet_NaN()}) EXPECT_EQ(encode_e8m0(beyond), 255);
  EXPECT_TRUE(std::isnan(decode_e8m0(255)));
}

}  // namespace
}  // namespace mixroof
