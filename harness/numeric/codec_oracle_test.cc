// Formats and codecs against the stored truth of oracle/formats (PyTorch and ml_dtypes). Skipped without the folder.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "harness/execute/oracle_test_support.h"
#include "harness/numeric/conversions.h"

namespace mixroof {
namespace {

class OracleFormats : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = oracle_folder();
    if (!folder_) GTEST_SKIP() << kNoOracle;
  }
  std::string stem(const std::string& file) const { return *folder_ + "/formats/" + file; }

 private:
  std::optional<std::string> folder_;
};

TEST_F(OracleFormats, Limits_AreEqual) {
  const OracleFile file(stem("limits"));
  for (const auto& [format_name, limits] : file.manifest().at("formats").items()) {
    SCOPED_TRACE(format_name);
    const auto format = parse_format(format_name);
    ASSERT_TRUE(format);
    const FormatFacts& f = facts(*format);
    EXPECT_EQ(f.mantissa_bits, limits.at("mantissa_bits").get<int>());
    EXPECT_EQ(f.max_finite, oracle_number(limits.at("max_finite")));
    EXPECT_EQ(f.min_normal, oracle_number(limits.at("min_normal")));
    EXPECT_EQ(f.min_subnormal, oracle_number(limits.at("min_subnormal")));
    EXPECT_EQ(f.epsilon, oracle_number(limits.at("epsilon")));
    EXPECT_EQ(f.unit_roundoff, oracle_number(limits.at("unit_roundoff")));
    EXPECT_EQ(f.has_infinity, limits.at("has_infinity").get<bool>());
  }
}

TEST_F(OracleFormats, CodesAndEdges_AreThoseOfTheLimits) {
  const OracleFile file(stem("limits"));
  for (const ScalarEncoder& encoder : scalar_encoders()) {
    if (encoder.format == Format::tf32) continue;
    SCOPED_TRACE(encoder.name);
    const auto& limits = file.manifest().at("formats").at(std::string(name(encoder.format)));
    const auto edge = [&](const char* key) { return static_cast<float>(oracle_number(limits.at(key))); };
    const auto largest = limits.at("max_finite_code").get<std::uint32_t>();
    EXPECT_EQ(encoder.encode(edge("max_finite")), largest);
    EXPECT_EQ(encoder.encode(std::nextafter(edge("least_overflowing_fp32"), 0.0f)), largest);
    const bool saturates = is_fp8(encoder.format) && encoder.in_arrays;
    EXPECT_EQ(encoder.encode(edge("least_overflowing_fp32")), saturates ? largest : largest + 1);
    EXPECT_EQ(encoder.encode(edge("largest_rounding_to_zero")), 0u);
    EXPECT_EQ(encoder.encode(std::nextafter(edge("largest_rounding_to_zero"), 1.0f)), 1u);
    std::uint32_t nans = 0;
    for (std::uint32_t code = 0; code <= 2 * encoder.magnitude_mask + 1; ++code)
      nans += std::isnan(decode_one(encoder.format, code));
    EXPECT_EQ(nans, limits.at("nan_codes").get<std::uint32_t>());
  }
}

TEST_F(OracleFormats, EveryCode_DecodesToTheStoredBits) {
  const OracleFile file(stem("decode"));
  for (const std::string& format_name : file.array_names()) {
    const Format format = parse_format(format_name).value();
    const std::vector<double> expected = file.values(format_name);
    for (std::uint32_t code = 0; code < expected.size(); ++code) {
      const float value = decode_one(format, code);
      const auto bits = static_cast<std::uint32_t>(expected[code]);
      if (std::isnan(float_of(bits))) {
        EXPECT_TRUE(std::isnan(value)) << format_name << " code " << code;
      } else {
        EXPECT_EQ(bits_of(value), bits) << format_name << " code " << code;
      }
    }
  }
}

struct StoredExpectation {
  const char* file;
  const char* array;
  const char* encoder;
};

constexpr StoredExpectation kExpectations[] = {
    {"encode_fp16", "expect", "fp16"},
    {"encode_bf16", "expect", "bf16"},
    {"encode_tf32", "expect_rne", "tf32_rne"},
    {"encode_fp8_e4m3", "expect_ieee", "fp8_e4m3_ieee"},
    {"encode_fp8_e4m3", "expect_saturating", "fp8_e4m3_saturating"},
    {"encode_fp8_e5m2", "expect_ieee", "fp8_e5m2_ieee"},
    {"encode_fp8_e5m2", "expect_saturating", "fp8_e5m2_saturating"},
};

const ScalarEncoder& encoder_named(std::string_view name) {
  for (const ScalarEncoder& encoder : scalar_encoders())
    if (encoder.name == name) return encoder;
  throw std::logic_error("no such encoder");
}

TEST_F(OracleFormats, EncodeVectors_AreEqualUnderBothOverflowPolicies) {
  for (const StoredExpectation& stored : kExpectations) {
    const ScalarEncoder& encoder = encoder_named(stored.encoder);
    const OracleFile file(stem(stored.file));
    const std::vector<double> inputs = file.values("input_bits"), expected = file.values(stored.array);
    ASSERT_EQ(inputs.size(), expected.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto input = static_cast<std::uint32_t>(inputs[i]);
      const auto code = static_cast<std::uint32_t>(expected[i]);
      const std::uint32_t got = encoder.encode(float_of(input));
      if (encoder.is_nan(code)) {
        EXPECT_TRUE(encoder.is_nan(got)) << encoder.name << " of bits " << input;
      } else {
        EXPECT_EQ(got, code) << encoder.name << " of bits " << input;
      }
    }
  }
}

TEST_F(OracleFormats, DoubleRounding_IsAvoidedByRoundTo) {
  const OracleFile file(stem("double_rounding"));
  for (const auto& row : file.manifest().at("cases")) {
    const auto format_name = row.at("format").get<std::string>();
    const Format format = parse_format(format_name).value();
    const auto bits = std::strtoull(row.at("f64_bits").get<std::string>().c_str(), nullptr, 16);
    const double value = std::bit_cast<double>(std::uint64_t{bits});
    const ScalarEncoder& encoder = encoder_named(format_name);
    const auto direct = row.at("direct").get<std::uint32_t>();
    EXPECT_EQ(round_to(format, value), decode_one(format, direct)) << format_name << " " << value;
    EXPECT_EQ(encoder.encode(static_cast<float>(round_to(format, value))), direct) << format_name << " " << value;
    EXPECT_EQ(encoder.encode(static_cast<float>(value)), row.at("via_fp32").get<std::uint32_t>()) << value;
    std::uint32_t code = 0;
    encode(format, &value, &code, 1);
    EXPECT_EQ(code, direct) << format_name << " " << value;
  }
}

}  // namespace
}  // namespace mixroof
