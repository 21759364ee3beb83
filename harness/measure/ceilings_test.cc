#include "harness/measure/ceilings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace mixroof {
namespace {

DeviceFacts two_cores() {
  DeviceFacts facts;
  facts.backend = "cpu";
  facts.units = 2;
  facts.caches = {{.level = 1, .bytes = 32768, .shared_by_cores = 1},
                  {.level = 2, .bytes = 524288, .shared_by_cores = 1},
                  {.level = 3, .bytes = 33554432, .shared_by_cores = 8}};
  return facts;
}

TEST(MemoryLevels, PrivateCachesCountOncePerWorkerAndSharedOnesOnce) {
  const std::vector<MemoryLevel> levels = memory_levels(two_cores());
  ASSERT_EQ(levels.size(), 3u);
  EXPECT_EQ(levels[0].name, "L1");
  EXPECT_EQ(levels[0].capacity_bytes, 65536);
  EXPECT_EQ(levels[1].capacity_bytes, 1048576);
  EXPECT_EQ(levels[2].capacity_bytes, 33554432);
}

TEST(WorkingSets, AreWellInsideTheirLevelAndDramFourTimesTheLastCache) {
  const std::vector<MemoryLevel> levels = memory_levels(two_cores());
  EXPECT_EQ(working_set_bytes(levels, 0), 32768);
  EXPECT_EQ(working_set_bytes(levels, 1), 524288);
  EXPECT_EQ(working_set_bytes(levels, 2), 8388608);
  EXPECT_EQ(working_set_bytes(levels, 3), 134217728);  // cases.md GPU-2: at least twice the last-level cache
}

TEST(WorkingSets, OfALevelHardlyLargerThanTheOneBefore_AreNone) {
  // Twice 28 MiB of L2 do not fit three quarters of 38 MiB of L3.
  EXPECT_EQ(working_set_bytes({{"L1", 1 << 20}, {"L2", 28 << 20}, {"L3", 38 << 20}}, 2), 0);
}

TEST(WorkingSets, WithoutKnownCaches_DramStillHasOne) { EXPECT_EQ(working_set_bytes({}, 0), 4 * (32 << 20)); }

TEST(Ceilings, OfThisMachine_HaveSamplesUnitsAndOneRowPerId) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(0);
  const std::vector<Ceiling> ceilings = measure_ceilings(*backend, {.budget_s = 0.5});
  std::set<std::string> ids;
  for (const Ceiling& ceiling : ceilings) {
    SCOPED_TRACE(ceiling.id);
    EXPECT_TRUE(ids.insert(ceiling.id).second);
    EXPECT_GE(ceiling.measured.n, 1);
    EXPECT_TRUE(std::isfinite(ceiling.rate()));
    EXPECT_GT(ceiling.rate(), 0);
    EXPECT_FALSE(ceiling.implementation.empty());
    EXPECT_FALSE(ceiling.shape.empty());
    // A register kernel may touch no memory at all.
    EXPECT_GE(ceiling.working_set_bytes, ceiling.shape == "registers" ? 0 : 1);
    EXPECT_EQ(ceiling.unit(), ceiling.kind == CeilingKind::compute ? "flop_per_s" : "byte_per_s");
  }
  for (const char* id :
       {"compute/fp32", "bandwidth/DRAM/read", "bandwidth/DRAM/write", "bandwidth/DRAM/copy", "bandwidth/DRAM/triad"})
    EXPECT_TRUE(ids.count(id)) << id;
}

TEST(Ceilings, AStopToken_ReturnsWhatHasSamples) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(0);
  const std::vector<Ceiling> ceilings = measure_ceilings(*backend, {.budget_s = 0.5, .stop = [] { return true; }});
  EXPECT_EQ(ceilings.size(), 1u);
}

TEST(Ceilings, TheReferenceBackend_IsNoMachine) { EXPECT_TRUE(measure_ceilings(*make_reference_backend()).empty()); }

}  // namespace
}  // namespace mixroof
