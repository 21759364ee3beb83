#include "harness/cli/quantity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <locale>

#include "harness/status.h"

namespace mixroof::cli {
namespace {

TEST(Quantity, SiText_TakesThePrefixThatLeavesOneToThreeDigitsBeforeThePoint) {
  EXPECT_EQ(si_text(2.01e11, "FLOP/s"), "201 GFLOP/s");
  EXPECT_EQ(si_text(989.4e12, "FLOP/s"), "989.4 TFLOP/s");
  EXPECT_EQ(si_text(1.5e-6, "s"), "1.5 us");
  EXPECT_EQ(si_text(999.96, "B/s"), "1 kB/s");  // 1000 at four digits
  EXPECT_EQ(si_text(999.94, "B/s"), "999.9 B/s");
  EXPECT_EQ(si_text(-2500, "W"), "-2.5 kW");
  EXPECT_EQ(si_text(0, "s"), "0 s");
  EXPECT_EQ(si_text(124439808, ""), "124.4 M");
  EXPECT_EQ(si_text(12, ""), "12");
}

TEST(Quantity, UnknownIsADash) {
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(si_text(unknown, "s"), "-");
  EXPECT_EQ(percent_text(unknown), "-");
}

TEST(Quantity, BytesText_CountsIn1024) {
  EXPECT_EQ(bytes_text(17), "17 B");
  EXPECT_EQ(bytes_text(512 * 1024), "512 KiB");
  EXPECT_EQ(bytes_text(std::int64_t{124439808} * 16), "1.854 GiB");  // cases.md, smaller leads
  EXPECT_EQ(bytes_text(1024 * 1024 - 1), "1 MiB");                   // not 1024 KiB
}

TEST(Quantity, CMP2_ParseBytes_TellsGAndGiApart) {
  EXPECT_EQ(parse_bytes("24GiB", "--memory"), std::int64_t{24} << 30);
  EXPECT_EQ(parse_bytes("24 GB", "--memory"), 24000000000);
  EXPECT_EQ(parse_bytes("1.5e9", "--memory"), 1500000000);
  EXPECT_EQ(parse_bytes("4096", "--memory"), 4096);
  for (const char* wrong : {"", "GiB", "24 G", "-1", "1,5GB", "nan", "inf", "1e30", "24GiBs"})
    EXPECT_THROW(parse_bytes(wrong, "--memory"), UsageError) << wrong;
}

TEST(Quantity, ParseDuration_ReadsSecondsMinutesHours) {
  EXPECT_DOUBLE_EQ(parse_duration_s("120", "--budget"), 120);
  EXPECT_DOUBLE_EQ(parse_duration_s("120s", "--budget"), 120);
  EXPECT_DOUBLE_EQ(parse_duration_s("500ms", "--budget"), 0.5);
  EXPECT_DOUBLE_EQ(parse_duration_s("2m", "--budget"), 120);
  EXPECT_DOUBLE_EQ(parse_duration_s("1.5h", "--budget"), 5400);
  for (const char* wrong : {"", "s", "-1s", "2 weeks", "1:30"})
    EXPECT_THROW(parse_duration_s(wrong, "--budget"), UsageError) << wrong;
}

TEST(Quantity, ParseNumber_WantsTheWholeText) {
  EXPECT_DOUBLE_EQ(parse_number("3e-4", "--lr"), 3e-4);
  for (const char* wrong : {"", "3e-4x", "0,5", "nan", "inf", " 1"})
    EXPECT_THROW(parse_number(wrong, "--lr"), UsageError) << wrong;
}

TEST(Quantity, ADecimalCommaInTheLocaleChangesNothing) {  // cases.md JSN-3
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::locale before = std::locale::global(std::locale(std::locale(), new Comma));
  EXPECT_EQ(si_text(2500, "B/s"), "2.5 kB/s");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_DOUBLE_EQ(parse_number("2.5", "--lr"), 2.5);
  std::locale::global(before);
}

}  // namespace
}  // namespace mixroof::cli
