// The sums over rows of inputs, against rounding that is spelled out here.
#include "harness/oracle/exhaustive.h"

#include <gtest/gtest.h>

#include "harness/oracle/oracle_test_folder.h"

namespace mixroof {
namespace {

const ScalarEncoder& bf16_encoder() {
  for (const ScalarEncoder& encoder : scalar_encoders())
    if (encoder.name == "bf16") return encoder;
  throw std::logic_error("no bf16 encoder");
}

/// bf16 of finite inputs with one top byte: to the nearest multiple of 2^16 patterns, ties to even.
Checksum bf16_row(std::uint32_t top) {
  Checksum c;
  for (std::uint64_t l = 0; l < 1u << 24; ++l) {
    const std::uint64_t bits = (std::uint64_t{top} << 24) + l;
    const std::uint64_t code = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    c.sum += code;
    c.weighted += code * (l + 1);
  }
  return c;
}

TEST(Checksums, ScalarAndArrays_EqualRoundingSpelledOut) {
  const Checksum expected = bf16_row(0x3F);
  EXPECT_EQ(checksums(bf16_encoder(), 0x7FC0, scalar_chunks(bf16_encoder()), 0x3F, 0x40).front(), expected);
  EXPECT_EQ(checksums(bf16_encoder(), 0x7FC0, array_chunks(Format::bf16), 0x3F, 0x40).front(), expected);
}

TEST(Checksums, OneMistakenCode_ChangesThem) {
  const auto mistaken = [](const float* in, std::uint32_t* codes, std::int64_t count) {
    scalar_chunks(bf16_encoder())(in, codes, count);
    if (in[0] == 0.5f) ++codes[5];
  };
  EXPECT_FALSE(checksums(bf16_encoder(), 0x7FC0, mistaken, 0x3F, 0x40).front() == bf16_row(0x3F));
}

TEST(Checksums, AWrongRow_NamesItsTopByte) {
  const AlteredOracle oracle("");
  const Checksum first = bf16_row(0), second = bf16_row(1);
  const auto text = [](std::uint64_t n) { return std::to_string(n); };
  const nlohmann::json column = {{"sum", {text(first.sum), text(second.sum + 1)}},
                                 {"weighted", {text(first.weighted), text(second.weighted)}}};
  oracle.write("formats/exhaustive", {{"canonical_nan", {{"bf16", 0x7FC0}}}, {"columns", {{"bf16", column}}}});
  std::vector<OracleRow> rows;
  const int failures = check_oracle({.folder = oracle.folder(), .groups = {"formats"}},
                                    [&](const OracleRow& row) { rows.push_back(row); });
  EXPECT_EQ(failures, 1);
  EXPECT_EQ(rows.back().item, "exhaustive/bf16");
  EXPECT_EQ(rows.back().where, "inputs with top byte 0x01 by the scalar function");
}

}  // namespace
}  // namespace mixroof
