#include "harness/backend/host.h"

#include <gmock/gmock.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cstring>
#include <fstream>

namespace mixroof {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

/// A machine's /proc and /sys under a folder of its own.
class FakeRoot : public testing::Test {
 protected:
  FakeRoot() {
    std::string pattern = (fs::temp_directory_path() / "mixroof_host_XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
  }
  ~FakeRoot() override { fs::remove_all(root_); }

  void put(const fs::path& path, std::string_view text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  EnvironmentCheck check(const std::string& name, const HostFacts& host = {}) {
    for (const EnvironmentCheck& found : check_environment(host, root_))
      if (found.check == name) return found;
    return {};
  }

  fs::path root_;
};

TEST(Quota, ENV1_Version2TextIsProcessors) {
  EXPECT_EQ(parse_cgroup_v2_quota("150000 100000\n"), 1.5);
  EXPECT_EQ(parse_cgroup_v2_quota("50000 100000\n"), 0.5);
  EXPECT_EQ(parse_cgroup_v2_quota("max 100000\n"), std::nullopt);
  for (const char* broken : {"", "\n", "150000", "150000 0", "-1 100000", "x y", "150000 100000 7"})
    EXPECT_EQ(parse_cgroup_v2_quota(broken), std::nullopt) << broken;
}

TEST(Quota, ENV1_Version1MinusOneIsNoLimit) {
  EXPECT_EQ(parse_cgroup_v1_quota("-1\n", "100000\n"), std::nullopt);
  EXPECT_EQ(parse_cgroup_v1_quota("150000\n", "100000\n"), 1.5);
  EXPECT_EQ(parse_cgroup_v1_quota("", ""), std::nullopt);
}

TEST(Cores, ENV1_LeastOfOnlineAffinityAndQuotaRoundedDownAtLeastOne) {
  EXPECT_EQ(cores_used(14, 14, 1.5), 1);          // 1.5 processors are one worker
  EXPECT_EQ(cores_used(14, 14, 0.5), 1);          // never none
  EXPECT_EQ(cores_used(14, 2, std::nullopt), 2);  // taskset -c 0,1
  EXPECT_EQ(cores_used(14, 14, std::nullopt), 14);
  EXPECT_EQ(cores_used(14, 14, 3.99), 3);
  EXPECT_EQ(cores_used(4, 4, 1e12), 4);  // far above what an int holds
  EXPECT_EQ(cores_used(0, 0, std::nullopt), 1);
}

TEST(Cores, ENV1_AffinityOfThisProcessIsSeen) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const HostFacts host = read_host();
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(host.cores_affinity, 1);
  EXPECT_EQ(host.cores_used, 1);
  EXPECT_EQ(read_host().cores_affinity, CPU_COUNT(&before));
}

TEST_F(FakeRoot, ENV1_WithoutCgroupsThereIsNoLimit) {
  EXPECT_EQ(read_cpu_quota(root_), std::nullopt);
  EXPECT_EQ(read_memory_available_bytes(root_), std::nullopt);
}

TEST_F(FakeRoot, ENV1_Version2QuotaOfAnAncestorCounts) {
  put("proc/self/cgroup", "0::/user.slice/job.scope\n");
  put("sys/fs/cgroup/user.slice/job.scope/cpu.max", "400000 100000\n");
  put("sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n");
  EXPECT_EQ(read_cpu_quota(root_), 1.5);
}

TEST_F(FakeRoot, ENV1_InAContainerTheMountIsTheGroup) {
  put("proc/self/cgroup", "0::/system.slice/docker-0123.scope\n");  // the host's path, not visible inside
  put("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(read_cpu_quota(root_), 0.5);
}

TEST_F(FakeRoot, ENV1_Version1QuotaIsReadFromTheCpuController) {
  put("proc/self/cgroup", "5:memory:/job\n4:cpu,cpuacct:/job\n3:cpuset:/\n");
  put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "250000\n");
  put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(read_cpu_quota(root_), 2.5);
}

TEST_F(FakeRoot, AvailableMemoryIsTheLesserOfSystemAndContainer) {
  put("proc/meminfo", "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:    4194304 kB\n");
  EXPECT_EQ(read_memory_available_bytes(root_), 4096 * kMiB);
  put("proc/self/cgroup", "0::/job\n");
  put("sys/fs/cgroup/job/memory.max", std::to_string(1024 * kMiB));
  put("sys/fs/cgroup/job/memory.current", std::to_string(700 * kMiB));
  put("sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file " + std::to_string(200 * kMiB) + "\n");
  // 1024 - (700 - 200): page cache that can be dropped is free.
  EXPECT_EQ(read_memory_available_bytes(root_), 524 * kMiB);
  put("sys/fs/cgroup/job/memory.max", "max\n");
  EXPECT_EQ(read_memory_available_bytes(root_), 4096 * kMiB);
}

TEST(Parsers, Version1UnlimitedMemoryIsNoLimit) {
  EXPECT_EQ(parse_cgroup_bytes("9223372036854771712\n"), std::nullopt);
  EXPECT_EQ(parse_cgroup_bytes("max\n"), std::nullopt);
  EXPECT_EQ(parse_cgroup_bytes("1073741824\n"), 1073741824);
}

TEST(Parsers, CpuLists) {
  EXPECT_EQ(parse_cpu_list_count("0-3,8,10-11\n"), 7);
  EXPECT_EQ(parse_cpu_list_count("0"), 1);
  for (const char* broken : {"", "3-1", "a", "1,,2"}) EXPECT_EQ(parse_cpu_list_count(broken), std::nullopt) << broken;
}

TEST(Parsers, CacheSizes) {
  EXPECT_EQ(parse_cache_size("48K\n"), 49152);
  EXPECT_EQ(parse_cache_size("32M"), 33554432);
  EXPECT_EQ(parse_cache_size("512"), 512);
  for (const char* broken : {"", "K", "0K", "1.5M"}) EXPECT_EQ(parse_cache_size(broken), std::nullopt) << broken;
}

TEST(Parsers, KibibyteLinesNeedTheWholeKey) {
  const char* text = "Pss_Dirty:   7 kB\nPss:   12 kB\nThreads: 3\n";
  EXPECT_EQ(parse_kib_line(text, "Pss"), 12288);
  EXPECT_EQ(parse_kib_line(text, "Rss"), std::nullopt);
  EXPECT_EQ(parse_kib_line(text, "Threads"), std::nullopt);  // no bytes
}

TEST_F(FakeRoot, FactsComeFromTheKernelsFiles) {
  put("etc/os-release", "NAME=\"Example\"\nPRETTY_NAME=\"Example Linux 12 (x)\"\n");
  put("proc/cpuinfo", "processor\t: 0\nmodel name\t: Example CPU @ 3 GHz\nflags : fpu\n");
  put("proc/meminfo", "MemTotal:  1024 kB\n");
  put("sys/devices/system/cpu/smt/active", "1\n");
  const HostFacts host = read_host(root_);
  EXPECT_EQ(host.os, "Example Linux 12 (x)");
  EXPECT_EQ(host.cpu, "Example CPU @ 3 GHz");
  EXPECT_EQ(host.memory_bytes, kMiB);
  EXPECT_EQ(host.smt_active, true);
}

TEST_F(FakeRoot, CachesLeaveOutInstructionsAndKeepSharing) {
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  int first = 0;
  while (!CPU_ISSET(first, &mask)) ++first;
  const std::string base = "sys/devices/system/cpu/cpu" + std::to_string(first) + "/cache/index";
  const auto put_cache = [&](int index, const char* level, const char* type, const char* size, const char* shared) {
    const std::string folder = base + std::to_string(index) + "/";
    put(folder + "level", level);
    put(folder + "type", type);
    put(folder + "size", size);
    put(folder + "shared_cpu_list", shared);
  };
  put_cache(3, "3\n", "Unified\n", "32M\n", "0-7\n");
  put_cache(0, "1\n", "Data\n", "32K\n", "0\n");
  put_cache(1, "1\n", "Instruction\n", "32K\n", "0\n");
  put_cache(2, "2\n", "Unified\n", "512K\n", "0,4\n");
  const std::vector<Cache> caches = read_host(root_).caches;
  ASSERT_EQ(caches.size(), 3u);
  EXPECT_EQ(caches[0].level, 1);
  EXPECT_EQ(caches[0].bytes, 32768);
  EXPECT_EQ(caches[1].shared_by_cores, 2);
  EXPECT_EQ(caches[2].bytes, 32 * kMiB);
  EXPECT_EQ(caches[2].shared_by_cores, 8);
}

TEST(Memory, TouchedPagesShowAndThePeakCanBeReset) {
  constexpr std::size_t kBytes = 64 * kMiB;
  const ProcessMemory before = read_process_memory();
  EXPECT_GT(before.rss_bytes, 0);
  {
    // Mapped, not allocated: an allocator (a sanitizer's above all) keeps freed pages resident.
    void* block = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(block, MAP_FAILED);
    std::memset(block, 1, kBytes);
    const ProcessMemory during = read_process_memory();
    // Half is margin for pages that the system takes back meanwhile.
    EXPECT_GT(during.rss_bytes, before.rss_bytes + static_cast<std::int64_t>(kBytes) / 2);
    ::munmap(block, kBytes);
  }
  EXPECT_GT(read_process_memory().peak_rss_bytes, before.rss_bytes + static_cast<std::int64_t>(kBytes) / 2);
  if (!reset_peak_rss()) GTEST_SKIP() << "the kernel refuses to reset the peak (/proc/self/clear_refs)";
  EXPECT_LT(read_process_memory().peak_rss_bytes, before.rss_bytes + static_cast<std::int64_t>(kBytes) / 2);
}

TEST_F(FakeRoot, WhatCannotBeReadIsUnknownAndNoFault) {
  for (const char* name : {"cpu governor", "cpu boost", "smt siblings", "load average", "transparent huge pages"}) {
    const EnvironmentCheck found = check(name);
    EXPECT_EQ(found.value, "unknown") << name;
    EXPECT_TRUE(found.ok) << name;
    EXPECT_FALSE(found.detail.empty()) << name;
  }
}

TEST_F(FakeRoot, SettingsThatSpoilAMeasurementAreFaultsWithARemedy) {
  put("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  put("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  put("proc/loadavg", "5.25 4.00 3.00 2/345 6789\n");
  HostFacts host;
  host.cores_online = 4;
  host.cores_used = 4;
  host.cores_quota = 0.5;
  for (const char* name : {"cpu governor", "transparent huge pages", "load average", "cpu quota"}) {
    const EnvironmentCheck found = check(name, host);
    EXPECT_FALSE(found.ok) << name;
    EXPECT_FALSE(found.detail.empty()) << name;
  }
  EXPECT_EQ(check("load average", host).value, "5.25");
  EXPECT_EQ(check("cpu quota", host).value, "0.5 cores");
}

TEST_F(FakeRoot, GoodSettingsAreNoFaults) {
  put("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
  put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  put("proc/loadavg", "1.20 1.00 1.00 1/100 100\n");
  HostFacts host;
  host.cores_online = 8;
  host.cores_used = 4;  // leaves four processors to the load of 1.2
  for (const char* name : {"cpu governor", "transparent huge pages", "load average", "cpu quota"})
    EXPECT_TRUE(check(name, host).ok) << name;
  EXPECT_EQ(check("transparent huge pages", host).value, "madvise");
}

TEST(Variables, OnesThatChangeResultsAreFaults_OthersAreRecorded) {
  const std::vector<std::string> variables = {"HOME=/home/user",        "ONEDNN_DEFAULT_FPMATH_MODE=BF16",
                                              "NVIDIA_TF32_OVERRIDE=1", "OMP_NUM_THREADS=2",
                                              "OPENBLAS_CORETYPE=Zen",  "broken"};
  const auto checks = check_variables(variables);
  ASSERT_EQ(checks.size(), 4u);
  EXPECT_EQ(checks[0].check, "variable NVIDIA_TF32_OVERRIDE");
  EXPECT_FALSE(checks[0].ok);
  EXPECT_THAT(checks[0].detail, HasSubstr("unset it"));
  EXPECT_EQ(checks[1].check, "variable OMP_NUM_THREADS");
  EXPECT_TRUE(checks[1].ok);
  EXPECT_EQ(checks[1].value, "2");
  EXPECT_EQ(checks[2].check, "variable ONEDNN_DEFAULT_FPMATH_MODE");
  EXPECT_FALSE(checks[2].ok);
  EXPECT_EQ(checks[3].check, "variable OPENBLAS_CORETYPE");
  EXPECT_TRUE(checks[3].ok);
  EXPECT_TRUE(check_variables(std::vector<std::string>{"ONEDNN_DEFAULT_FPMATH_MODE=STRICT"})[0].ok);
  EXPECT_THAT(check_variables({}), IsEmpty());
}

}  // namespace
}  // namespace mixroof
