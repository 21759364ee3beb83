#include "harness/cli/explain/absorption.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "harness/execute/oracle_test_support.h"

namespace mixroof::cli {
namespace {

TEST(ExplainAbsorption, AQuarterOfASpacing_MovesTheCopyOfTheMasterWithTheThirdUpdate) {
  Workbench bench;
  const RepeatedUpdate weight = repeat_update(bench, Format::fp16, 1.5, -0x1p-12, 4);
  EXPECT_EQ(weight.low_only, Values(4, 1.5));
  EXPECT_EQ(weight.master, (Values{1.5 - 0x1p-12, 1.5 - 2 * 0x1p-12, 1.5 - 3 * 0x1p-12, 1.5 - 4 * 0x1p-12}));
  EXPECT_EQ(weight.copy_of_master, (Values{1.5, 1.5, 1.5 - 0x1p-10, 1.5 - 0x1p-10}));
}

TEST(ExplainAbsorption, NUM3_AHundredUpdates_AreLostInBf16AndKeptInTheMaster) {
  Workbench bench;
  const RepeatedUpdate weight = repeat_update(bench, Format::bf16, 1.0, -6e-4, 100);
  EXPECT_EQ(weight.low_only, Values(100, 1.0));
  EXPECT_NEAR(weight.master.back(), 0.9400020, 5e-8);
  EXPECT_EQ(weight.copy_of_master.back(), 0.94140625);
}

TEST(ExplainAbsorption, NUM3_DecayAndBeta2_VanishInBf16) {
  Workbench bench;
  EXPECT_EQ(bench.cast({1 - 1e-6, 0.999}, Format::bf16), (Values{1.0, 1.0}));
  const SlowDecay bf16 = decay_slowly(bench, Format::bf16, 100), fp32 = decay_slowly(bench, Format::fp32, 100);
  EXPECT_EQ(bf16.weight, 1.0);
  EXPECT_EQ(bf16.moment2, 1.0);
  EXPECT_NEAR(fp32.weight, 0.9999, 6e-6);     // (1 - 1e-6)^100; each rounding costs up to 2^-25
  EXPECT_NEAR(fp32.moment2, 0.904792, 5e-6);  // 0.999^100
}

TEST(ExplainAbsorption, OneAddition_IsAbsorbedBelowHalfASpacing) {
  Workbench bench;
  EXPECT_EQ(bench.add(1, 1e-7, Format::fp16), 1.0);
  EXPECT_EQ(bench.add(1, 1e-5, Format::bf16), 1.0);
  EXPECT_EQ(bench.add(1, 1e-7, Format::fp32), 1 + 0x1p-23);
  EXPECT_EQ(bench.add(1.5, -0x1p-12, Format::fp16), 1.5);
}

TEST(ExplainAbsorption, RoundingOnce_EqualsTheOracle) {
  const auto oracle = open_oracle("formats/absorption");
  if (!oracle) GTEST_SKIP() << kNoOracle;
  Workbench bench;
  for (const auto& row : oracle->manifest().at("round_once"))
    EXPECT_EQ(bench.cast({row.at("input").get<double>()}, *parse_format(row.at("format").get<std::string>()))[0],
              row.at("rounded").get<double>())
        << row;
}

TEST(ExplainAbsorption, RepeatedUpdates_EqualTheOracleBitForBit) {
  const auto oracle = open_oracle("formats/absorption");
  if (!oracle) GTEST_SKIP() << kNoOracle;
  Workbench bench;
  for (const auto& row : oracle->manifest().at("repeated_updates")) {
    const RepeatedUpdate weight =
        repeat_update(bench, *parse_format(row.at("format").get<std::string>()), row.at("weight").get<double>(),
                      row.at("update_fp32").get<double>(), row.at("updates").get<int>());
    EXPECT_EQ(weight.low_only, row.at("low_only").get<Values>()) << row.at("weight");
    EXPECT_EQ(weight.master, row.at("master_fp32").get<Values>()) << row.at("weight");
    EXPECT_EQ(weight.copy_of_master, row.at("copy_of_master").get<Values>()) << row.at("weight");
  }
}

}  // namespace
}  // namespace mixroof::cli
