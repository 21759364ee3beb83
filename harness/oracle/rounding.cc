// Group formats: values rounded once and twice, and updates that 16 bits absorb.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "harness/numeric/codec.h"
#include "harness/numeric/conversions.h"
#include "harness/oracle/comparison.h"
#include "harness/oracle/formats.h"

namespace mixroof {
namespace {

constexpr const char* kGroup = kFormatsGroup;

/// The encoder of the array functions.
const ScalarEncoder& array_encoder(Format format) {
  for (const ScalarEncoder& encoder : scalar_encoders())
    if (encoder.format == format && encoder.in_arrays) return encoder;
  throw UsageError(fmt::format("format {} has no encoder", name(format)));
}

void check_round_once(const OracleEntry& rows, Comparison& c) {
  for (const OracleEntry& row : rows.items()) {
    const Format format = format_of(row.at("format"), row.text("format"));
    c.equal(round_to(format, row.number("input")), row.number("rounded"), row.key());
  }
}

/// `weight` kept in `format` with an update added in fp32 each time, and beside it the master with its copy.
void check_repeated_updates(const OracleEntry& rows, Comparison& c) {
  for (const OracleEntry& row : rows.items()) {
    const Format format = format_of(row.at("format"), row.text("format"));
    const auto update = static_cast<float>(row.number("update_fp32"));
    const std::vector<double> lows = row.numbers("low_only"), masters = row.numbers("master_fp32"),
                              copies = row.numbers("copy_of_master");
    auto master = static_cast<float>(row.number("weight"));
    auto low = static_cast<float>(round_to(format, master));
    for (std::int64_t u = 0; u < row.whole("updates"); ++u) {
      const auto at = static_cast<std::size_t>(u);
      if (at >= std::min({lows.size(), masters.size(), copies.size()})) row.refuse("has fewer results than updates");
      low = static_cast<float>(round_to(format, low + update));
      master += update;
      const auto equal = [&](double got, double expected, const char* what) {
        c.equal(got, expected, fmt::format("{}.{}[{}]", row.key(), what, u));
      };
      equal(low, lows[at], "low_only");
      equal(master, masters[at], "master_fp32");
      equal(round_to(format, master), copies[at], "copy_of_master");
    }
  }
}

void check_underflow(const OracleEntry& rows, Comparison& c) {
  for (const OracleEntry& row : rows.items()) {
    const auto scale = static_cast<float>(row.number("scale"));
    const std::uint16_t stored = encode_fp16(static_cast<float>(row.number("gradient")) * scale);
    c.equal(stored, row.number("fp16_bits"), row.key() + ".fp16_bits");
    c.equal(decode_fp16(stored) / scale, row.number("unscaled_fp32"), row.key() + ".unscaled_fp32");
  }
}

}  // namespace

void check_double_rounding(OracleSession& session) {
  const auto file = session.open(kGroup, "double_rounding");
  if (!file) return;
  Comparison c;
  for (const OracleEntry& row : OracleEntry(*file).items("cases")) {
    const std::string format_name = row.text("format");
    const Format format = format_of(row.at("format"), format_name);
    const ScalarEncoder& encoder = array_encoder(format);
    const double value = std::bit_cast<double>(unsigned_of(row.at("f64_bits"), 16));
    const std::uint32_t direct = code_of(row.number("direct"));
    const auto equal = [&](double got, double expected, const char* how) {
      c.equal(got, expected, fmt::format("{}, {} {:.17g} {}", row.key(), format_name, value, how));
    };
    equal(round_to(format, value), decode_one(format, direct), "rounded once");
    equal(encoder.encode(static_cast<float>(round_to(format, value))), direct, "rounded once");
    equal(encoder.encode(static_cast<float>(value)), row.number("via_fp32"), "through fp32");
    std::uint32_t code = 0;
    encode(format, &value, &code, 1);
    equal(code, direct, "by the array function");
  }
  session.add(c.row(kGroup, "double_rounding"));
}

void check_absorption(OracleSession& session) {
  const auto file = session.open(kGroup, "absorption");
  if (!file) return;
  struct Part {
    const char* key;
    void (*check)(const OracleEntry& rows, Comparison& c);
  };
  constexpr Part kParts[] = {{"round_once", check_round_once},
                             {"repeated_updates", check_repeated_updates},
                             {"gradient_underflow_fp16", check_underflow}};
  for (const Part& part : kParts) {
    if (!OracleEntry(*file).has(part.key)) continue;
    Comparison c;
    part.check(OracleEntry(*file).at(part.key), c);
    session.add(c.row(kGroup, std::string("absorption/") + part.key));
  }
}

}  // namespace mixroof
