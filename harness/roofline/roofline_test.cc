#include "harness/roofline/roofline.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mixroof {
namespace {

Ceiling compute(std::string path, double flop_per_s) {
  return {.id = "compute/" + path,
          .kind = CeilingKind::compute,
          .path = path,
          .measured = summarize(std::vector<double>{flop_per_s})};
}
Ceiling bandwidth(std::string level, std::string mix, double byte_per_s) {
  return {.id = "bandwidth/" + level + "/" + mix,
          .kind = CeilingKind::bandwidth,
          .path = "memory",
          .level = level,
          .mix = mix,
          .measured = summarize(std::vector<double>{byte_per_s})};
}
Work work(Format format, std::int64_t flops, std::int64_t read, std::int64_t written, bool emulated = false) {
  Work w{.bytes_read = read, .bytes_written = written, .emulated = emulated};
  w.flops[static_cast<std::size_t>(format)] = flops;
  return w;
}

TEST(Roofline, GPU2_AFillThatStayedInTheCache_IsFlaggedAndNotClipped) {
  const Roofline roofline({bandwidth("DRAM", "write", 1.792e12)}, {});
  const Work fill{.bytes_written = 16777216};
  const double time_s = 8.182e-6;
  EXPECT_NEAR(static_cast<double>(fill.bytes()) / time_s, 2.0505e12, 5e7);
  const std::optional<Point> point = roofline.point(fill, CacheState::cold, time_s);
  ASSERT_TRUE(point);
  EXPECT_NEAR(point->fraction, 1.144, 5e-4);  // 2.0505 / 1.792
  EXPECT_TRUE(point->above_ceiling);
  EXPECT_EQ(point->roof.bound, Bound::memory);
}

TEST(Roofline, UpToTwoPercentAbove_IsNoFinding) {
  const Roofline roofline({bandwidth("DRAM", "read", 1e9)}, {});
  EXPECT_FALSE(roofline.point({.bytes_read = 1019}, CacheState::cold, 1e-6)->above_ceiling);  // 1.019
  EXPECT_TRUE(roofline.point({.bytes_read = 1021}, CacheState::cold, 1e-6)->above_ceiling);
}

TEST(Roofline, TheSlowerSide_IsTheBound) {
  const Roofline roofline({compute("fp32", 100e9), bandwidth("DRAM", "read", 10e9)}, {});
  // 1e9 FLOPs take 10 ms; 1e7 bytes 1 ms, 1e9 bytes 100 ms.
  const Roof few_bytes = *roofline.roof(work(Format::fp32, 1000000000, 10000000, 0), CacheState::cold).roof;
  EXPECT_DOUBLE_EQ(few_bytes.time_s, 0.01);
  EXPECT_EQ(few_bytes.bound, Bound::compute);
  EXPECT_EQ(few_bytes.ceiling_ids, (std::vector<std::string>{"compute/fp32", "bandwidth/DRAM/read"}));
  const Roof many_bytes = *roofline.roof(work(Format::fp32, 1000000000, 1000000000, 0), CacheState::cold).roof;
  EXPECT_DOUBLE_EQ(many_bytes.time_s, 0.1);
  EXPECT_EQ(many_bytes.bound, Bound::memory);
}

TEST(Roofline, FlopsOfSeveralFormats_AddUp) {
  const Roofline roofline({compute("fp32", 100e9), compute("bf16", 400e9)}, {});
  Work w = work(Format::fp32, 1000000000, 0, 0);                // 10 ms
  w.flops[static_cast<std::size_t>(Format::bf16)] = 800000000;  // 2 ms
  EXPECT_DOUBLE_EQ(roofline.roof(w, CacheState::cold).roof->time_s, 0.012);
}

TEST(Roofline, EmulatedFormats_StandUnderThePathThatExecuted) {
  const Roofline roofline({compute("fp32", 100e9), compute("bf16", 400e9)}, {});
  EXPECT_DOUBLE_EQ(roofline.roof(work(Format::bf16, 400000000, 0, 0), CacheState::hot).roof->time_s, 0.001);
  const Roof emulated = *roofline.roof(work(Format::bf16, 400000000, 0, 0, true), CacheState::hot).roof;
  EXPECT_DOUBLE_EQ(emulated.time_s, 0.004);
  EXPECT_EQ(emulated.ceiling_ids, (std::vector<std::string>{"compute/fp32"}));
}

TEST(Roofline, TheBestOfRegisterKernelAndMatrixProduct_IsTheCeiling) {
  const std::vector<Ceiling> ceilings = {compute("fp32", 100e9), compute("fp32_matmul", 110e9), compute("bf16", 400e9)};
  EXPECT_EQ(best_compute(ceilings, "fp32")->id, "compute/fp32_matmul");
  EXPECT_EQ(best_compute(ceilings, "bf16")->id, "compute/bf16");
  EXPECT_EQ(best_compute(ceilings, "tf32"), nullptr);
}

TEST(Roofline, AMissingCeiling_IsAReasonAndNoFigure) {
  const Roofline roofline({compute("fp32", 100e9)}, {});
  const RoofResult no_path = roofline.roof(work(Format::tf32, 1000, 0, 0), CacheState::cold);
  EXPECT_FALSE(no_path.roof);
  EXPECT_NE(no_path.reason.find("tf32"), std::string::npos);
  EXPECT_FALSE(roofline.roof(work(Format::fp32, 1000, 8, 0), CacheState::cold).roof);
  EXPECT_FALSE(roofline.point(work(Format::fp32, 1000, 8, 0), CacheState::cold, 1).has_value());
  EXPECT_FALSE(roofline.point(work(Format::fp32, 1000, 0, 0), CacheState::cold, 0).has_value());
}

TEST(Roofline, WorkWithoutFlopsOrBytes_TakesNoTime) {
  EXPECT_EQ(Roofline({}, {}).roof({}, CacheState::cold).roof->time_s, 0);
}

TEST(Roofline, BandwidthMatchesTheMixOfReadsAndWrites) {
  const Roofline roofline({bandwidth("DRAM", "read", 40e9), bandwidth("DRAM", "triad", 30e9),
                           bandwidth("DRAM", "copy", 20e9), bandwidth("DRAM", "write", 10e9)},
                          {});
  const auto rate = [&](std::int64_t read, std::int64_t written) {
    const Roof roof = *roofline.roof({.bytes_read = read, .bytes_written = written}, CacheState::cold).roof;
    return static_cast<double>(read + written) / roof.time_s;
  };
  EXPECT_NEAR(rate(600, 0), 40e9, 1);
  EXPECT_NEAR(rate(400, 200), 30e9, 1);
  EXPECT_NEAR(rate(300, 300), 20e9, 1);
  EXPECT_NEAR(rate(0, 600), 10e9, 1);
  // 350 of 600 read: halfway between copy and triad, 1/(½/20e9 + ½/30e9) = 24e9.
  EXPECT_NEAR(rate(350, 250), 24e9, 1);
  const Roof between = *roofline.roof({.bytes_read = 350, .bytes_written = 250}, CacheState::cold).roof;
  EXPECT_EQ(between.ceiling_ids, (std::vector<std::string>{"bandwidth/DRAM/copy", "bandwidth/DRAM/triad"}));
}

TEST(Roofline, HotWork_StandsUnderTheNearestLevelThatHoldsIt) {
  const Roofline roofline(
      {bandwidth("L1", "read", 400e9), bandwidth("L2", "read", 200e9), bandwidth("DRAM", "read", 20e9)},
      {{"L1", 65536}, {"L2", 1048576}, {"L3", 33554432}});
  const auto id = [&](std::int64_t bytes, CacheState state) {
    return roofline.roof({.bytes_read = bytes}, state).roof->ceiling_ids.at(0);
  };
  EXPECT_EQ(id(65536, CacheState::hot), "bandwidth/L1/read");
  EXPECT_EQ(id(65537, CacheState::hot), "bandwidth/L2/read");
  EXPECT_EQ(id(65537, CacheState::in_step), "bandwidth/L2/read");
  EXPECT_EQ(id(1048577, CacheState::hot), "bandwidth/DRAM/read");  // fits L3, which has no measured ceiling
  EXPECT_EQ(id(1024, CacheState::cold), "bandwidth/DRAM/read");
}

TEST(Roofline, ANearLevelThatCameOutSlower_DoesNotLowerTheRoof) {
  const Roofline roofline({bandwidth("L3", "read", 15e9), bandwidth("DRAM", "read", 20e9)}, {{"L3", 33554432}});
  EXPECT_DOUBLE_EQ(roofline.roof({.bytes_read = 20000}, CacheState::hot).roof->time_s, 1e-6);
}

TEST(Roofline, FloorOfAnUpdate_IsNeverAboveTheSumOfItsOpsRoofs) {
  const Roofline roofline({compute("fp32", 100e9), bandwidth("DRAM", "read", 10e9)}, {});
  const std::vector<Work> ops = {work(Format::fp32, 1000000000, 1000000, 0), work(Format::fp32, 0, 50000000, 0)};
  EXPECT_DOUBLE_EQ(*roofline.roof_sum(ops, CacheState::cold).time_s, 0.015);  // 10 ms compute, then 5 ms memory
  // The whole program: 1e9 FLOPs take 10 ms, 51e6 bytes 5.1 ms, both at once.
  EXPECT_DOUBLE_EQ(roofline.floor(work(Format::fp32, 1000000000, 51000000, 0)).roof->time_s, 0.01);
}

TEST(Ceilings, MergeBest_KeepsTheFasterOfEachIdAndAddsNewOnes) {
  std::vector<Ceiling> kept = {compute("fp32", 100e9), bandwidth("DRAM", "read", 20e9)};
  merge_best(kept, std::vector<Ceiling>{compute("fp32", 90e9), bandwidth("DRAM", "read", 25e9), compute("bf16", 1e9)});
  ASSERT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept[0].rate(), 100e9);
  EXPECT_EQ(kept[1].rate(), 25e9);
  EXPECT_EQ(kept[2].id, "compute/bf16");
}

TEST(Ceilings, MergeBest_NeverKeepsOneWithoutSamples) {
  std::vector<Ceiling> kept = {{.id = "compute/fp32", .path = "fp32"}};
  merge_best(kept, std::vector<Ceiling>{compute("fp32", 90e9)});
  EXPECT_EQ(kept[0].rate(), 90e9);
  merge_best(kept, std::vector<Ceiling>{{.id = "compute/fp32", .path = "fp32"}});
  EXPECT_EQ(kept[0].rate(), 90e9);
}

}  // namespace
}  // namespace mixroof
