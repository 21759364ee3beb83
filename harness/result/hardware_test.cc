#include "harness/result/hardware.h"

#include <gmock/gmock.h>

#include <set>

#include "harness/status.h"

namespace mixroof {
namespace {

using testing::HasSubstr;

std::string error_of(auto&& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return {};
}

TEST(Hardware, PLN2_H100AndH200HaveTheSameDensePeak_EqualRatesGiveEqualFractions) {
  const double rate = 480e12;
  const Hardware &h100 = find_hardware("h100_sxm_80gb"), &h200 = find_hardware("h200_sxm");
  // 480 / 989.4 = 0.4851; against the sparse 1979 it would be 0.2425.
  EXPECT_NEAR(rate / *h100.peak(Format::bf16), 0.4851, 0.0001);
  EXPECT_EQ(h100.peak(Format::bf16), h200.peak(Format::bf16));
  EXPECT_NEAR(rate / h100.not_dense_flop_per_s.at("bf16_tensor"), 0.2425, 0.0001);
}

TEST(Hardware, PLN2_NoRowPromisesANumberThatItListsAsNotDense) {
  int compared = 0;
  for (const Hardware& hardware : all_hardware())
    for (const auto& [path, rejected] : hardware.not_dense_flop_per_s) {
      if (const auto peak = hardware.peak(path)) {
        EXPECT_LT(*peak, rejected) << hardware.id << " " << path;
        ++compared;
      }
    }
  EXPECT_GT(compared, 30);
}

TEST(Hardware, PLN2_ASparseNumberAsPeakIsRefused) {
  const std::string row = R"({"sources":{},"devices":[{"id":"x","name":"X","vendor":"V","kind":"gpu","architecture":"A",
    "form_factor":null,"compute_capability":null,"compute_unit_count":null,"compute_unit_kind":null,"boost_clock_hz":null,
    "tensor_boost_clock_hz":null,"memory_bytes":null,"memory_bandwidth_bytes_per_s":null,"l2_bytes":null,"tdp_watts":null,
    "peak_dense_flops_per_s":{"bf16_tensor":PEAK},"unsupported_paths":[],"not_dense_flops_per_s":{"bf16_tensor":1979e12},
    "value_sources":{},"weakly_sourced_fields":[],"confidence":"low"}]})";
  const auto with_peak = [&](const std::string& peak) {
    std::string text = row;
    return text.replace(text.find("PEAK"), 4, peak);
  };
  EXPECT_EQ(parse_hardware(with_peak("989e12"), "f").at(0).peak("bf16_tensor"), 989e12);
  EXPECT_EQ(parse_hardware(with_peak("null"), "f").at(0).peak("bf16_tensor"), std::nullopt);
  EXPECT_THAT(error_of([&] { parse_hardware(with_peak("1979e12"), "f"); }), HasSubstr("not the dense rate"));
  EXPECT_THAT(error_of([&] { parse_hardware(with_peak("0"), "f"); }), HasSubstr("unknown is null"));
}

TEST(Hardware, UnknownStaysUnknownAndUnsupportedIsTold) {
  const Hardware& v100 = find_hardware("v100_sxm2_16gb");
  EXPECT_EQ(v100.peak(Format::bf16), std::nullopt);
  EXPECT_TRUE(v100.is_unsupported("bf16_tensor"));
  EXPECT_EQ(v100.peak(Format::fp16), 125e12);
  const Hardware& epyc = find_hardware("cpu_epyc_7763");
  EXPECT_EQ(epyc.peak(Format::fp32), std::nullopt);
  EXPECT_FALSE(epyc.is_unsupported("fp32"));
  EXPECT_EQ(epyc.memory_bandwidth_bytes_per_s, std::nullopt);
}

TEST(Hardware, EveryRowHasSourcesADistinctIdAndSaneUnits) {
  std::set<std::string> ids;
  for (const Hardware& hardware : all_hardware()) {
    EXPECT_TRUE(ids.insert(hardware.id).second) << hardware.id;
    EXPECT_FALSE(hardware.sources.empty()) << hardware.id;
    if (hardware.boost_clock_hz) {
      EXPECT_GT(*hardware.boost_clock_hz, 0.5e9) << hardware.id;
      EXPECT_LT(*hardware.boost_clock_hz, 6e9) << hardware.id;
    }
    if (hardware.memory_bandwidth_bytes_per_s) {
      EXPECT_GT(*hardware.memory_bandwidth_bytes_per_s, 1e10) << hardware.id;
    }
  }
  EXPECT_EQ(ids.size(), 55u);
}

TEST(Hardware, AMisspeltIdNamesItsNeighbours) {
  EXPECT_THAT(error_of([] { find_hardware("h100_smx_80gb"); }), HasSubstr("h100_sxm_80gb"));
}

TEST(Hardware, ByNameNeedsTheWholeName) {
  const Hardware* found = find_hardware_by_name(find_hardware("t4").name);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->id, "t4");
  EXPECT_EQ(find_hardware_by_name("NVIDIA"), nullptr);
}

}  // namespace
}  // namespace mixroof
