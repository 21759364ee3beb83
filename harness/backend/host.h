// What this machine offers to this process: cores and memory after affinity and container limits, caches, and the
// settings around a measurement that can spoil it. Everything is read from /proc and /sys; what cannot be read is
// unknown, never 0. To add a check of the environment: one function in host.cc and its line in check_environment.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/backend/facts.h"

namespace mixroof {

struct HostFacts {
  std::string os;                 // "Debian GNU/Linux 12 (bookworm)", as the distribution prints it; empty when unknown
  std::string kernel;             // uname: system and release
  std::string cpu;                // model name; empty when the hypervisor hides it
  std::int64_t memory_bytes = 0;  // of the machine, before container limits
  int cores_online = 1;           // logical processors
  int cores_affinity = 1;         // of those, the ones that this process may use
  std::optional<double> cores_quota;  // the container's CPU limit in processors; none when unlimited
  int cores_used = 1;                 // workers by default, see cores_used()
  std::optional<bool> smt_active;     // hardware threads share cores; unknown in many guests
  std::vector<Cache> caches;          // data and unified caches of the first usable processor, by level
};

/// Facts of this machine. `root` stands for "/" in tests; processor counts and affinity always come from the system.
HostFacts read_host(const std::filesystem::path& root = "/");

/// Least of online, affinity and the quota rounded down, at least 1.
int cores_used(int online, int affinity, std::optional<double> quota);

/// The CPU limit in processors: the smallest of the process's cgroup and its ancestors, version 1 or 2; none without
/// one.
std::optional<double> read_cpu_quota(const std::filesystem::path& root = "/");
/// Bytes that can still be allocated without swapping: the lesser of MemAvailable and what container limits leave (page
/// cache of the cgroup counts as free). None when neither can be read.
std::optional<std::int64_t> read_memory_available_bytes(const std::filesystem::path& root = "/");

/// Memory of this process as the kernel counts it.
struct ProcessMemory {
  std::int64_t rss_bytes = 0;
  std::int64_t peak_rss_bytes = 0;              // since the start or the last reset_peak_rss()
  std::optional<std::int64_t> pss_bytes;        // shared pages divided by their users; none without smaps_rollup
  std::optional<std::int64_t> huge_page_bytes;  // of the anonymous memory, in transparent huge pages
};
ProcessMemory read_process_memory();
/// Sets the peak back to the present resident size. False when the kernel refuses; the peak is then that of the
/// process.
bool reset_peak_rss();

/// One row of the document's `environment`: `ok` is false when a setting can spoil a measurement, and `detail` then
/// ends with a remedy. A setting that cannot be read has the value "unknown" and is no fault.
struct EnvironmentCheck {
  std::string check;
  bool ok = true;
  std::string value;
  std::string detail;
};
std::vector<EnvironmentCheck> check_environment(const HostFacts& host, const std::filesystem::path& root = "/");
/// The part of check_environment that looks at "NAME=value" variables which change what libraries compute or how fast.
std::vector<EnvironmentCheck> check_variables(std::span<const std::string> variables);

// Parsers of what the kernel prints; none when the text means "no limit" or is not understood.

/// cpu.max of cgroup version 2: "QUOTA PERIOD" in microseconds or "max PERIOD". In processors.
std::optional<double> parse_cgroup_v2_quota(std::string_view cpu_max);
/// cpu.cfs_quota_us (-1: unlimited) and cpu.cfs_period_us of cgroup version 1. In processors.
std::optional<double> parse_cgroup_v1_quota(std::string_view quota_us, std::string_view period_us);
/// memory.max or memory.limit_in_bytes; "max" and the version 1 figure for unlimited (near 2^63) are no limit.
std::optional<std::int64_t> parse_cgroup_bytes(std::string_view text);
/// Number of processors in "0-3,8,10-11".
std::optional<int> parse_cpu_list_count(std::string_view text);
/// "48K", "512K", "32M" in bytes.
std::optional<std::int64_t> parse_cache_size(std::string_view text);
/// Value in bytes of a line "Key:   123 kB" (the kernel's kB is 1024 bytes).
std::optional<std::int64_t> parse_kib_line(std::string_view text, std::string_view key);

}  // namespace mixroof
