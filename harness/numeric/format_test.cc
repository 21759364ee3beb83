#include "harness/numeric/format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mixroof {
namespace {

TEST(Format, EveryFormat_IsFoundByItsName) {
  ASSERT_EQ(all_formats().size(), static_cast<std::size_t>(kFormatCount));
  for (const Format format : all_formats()) EXPECT_EQ(parse_format(name(format)), format) << name(format);
  EXPECT_EQ(parse_format("fp7"), std::nullopt);
  EXPECT_EQ(parse_format(""), std::nullopt);
}

TEST(Format, StoredBytes) {
  EXPECT_EQ(bytes_of(Format::fp8_e4m3), 1);
  EXPECT_EQ(bytes_of(Format::fp8_e5m2), 1);
  EXPECT_EQ(bytes_of(Format::fp16), 2);
  EXPECT_EQ(bytes_of(Format::bf16), 2);
  EXPECT_EQ(bytes_of(Format::fp32), 4);
  EXPECT_EQ(bytes_of(Format::tf32), 4);  // stored as fp32
  EXPECT_EQ(bytes_of(Format::fp64), 8);
  EXPECT_EQ(bytes_of(Format::int32), 4);
}

TEST(Format, LimitsOfFp32AndFp64_AreThoseOfTheLanguage) {
  const FormatFacts& fp32 = facts(Format::fp32);
  EXPECT_EQ(fp32.max_finite, std::numeric_limits<float>::max());
  EXPECT_EQ(fp32.min_normal, std::numeric_limits<float>::min());
  EXPECT_EQ(fp32.min_subnormal, std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(fp32.epsilon, std::numeric_limits<float>::epsilon());
  const FormatFacts& fp64 = facts(Format::fp64);
  EXPECT_EQ(fp64.max_finite, std::numeric_limits<double>::max());
  EXPECT_EQ(fp64.min_normal, std::numeric_limits<double>::min());
  EXPECT_EQ(fp64.min_subnormal, std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(fp64.epsilon, std::numeric_limits<double>::epsilon());
}

TEST(Format, LimitsOfNarrowFormats_WorkedByHand) {
  // fp16: (2 - 2^-10) * 2^15. bf16: (2 - 2^-7) * 2^127. E4M3: 1.75 * 2^8, since 1.875 * 2^8 = 480 is the NaN.
  // E5M2: 1.75 * 2^15. tf32: (2 - 2^-10) * 2^127.
  EXPECT_EQ(facts(Format::fp16).max_finite, 65504);
  EXPECT_EQ(facts(Format::bf16).max_finite, std::ldexp(255.0 / 128, 127));
  EXPECT_EQ(facts(Format::fp8_e4m3).max_finite, 448);
  EXPECT_EQ(facts(Format::fp8_e5m2).max_finite, 57344);
  EXPECT_EQ(facts(Format::tf32).max_finite, std::ldexp(2047.0 / 1024, 127));
  EXPECT_EQ(facts(Format::fp16).min_subnormal, std::ldexp(1, -24));
  EXPECT_EQ(facts(Format::fp8_e4m3).min_subnormal, std::ldexp(1, -9));
  EXPECT_EQ(facts(Format::fp8_e5m2).min_subnormal, std::ldexp(1, -16));
  EXPECT_FALSE(facts(Format::fp8_e4m3).has_infinity);
  EXPECT_TRUE(facts(Format::fp8_e5m2).has_infinity);
}

TEST(Format, FamiliesAreTold) {
  EXPECT_TRUE(is_fp8(Format::fp8_e4m3) && is_fp8(Format::fp8_e5m2));
  EXPECT_FALSE(is_fp8(Format::fp16) || is_fp8(Format::fp32));
  EXPECT_TRUE(is_16_bit(Format::fp16) && is_16_bit(Format::bf16));
  EXPECT_FALSE(is_16_bit(Format::tf32) || is_16_bit(Format::fp8_e5m2));
}

}  // namespace
}  // namespace mixroof
