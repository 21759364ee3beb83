#include "harness/backend/host.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

extern char** environ;

namespace mixroof {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kKiB = 1024;

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const auto begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::optional<std::string> read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) return std::nullopt;
  return text;
}

/// The trimmed content of a one-line file; none when missing or empty.
std::optional<std::string> read_line(const fs::path& path) {
  const auto text = read_text(path);
  if (!text || trim(*text).empty()) return std::nullopt;
  return std::string(trim(*text));
}

template <typename T>
std::optional<T> parse_number(std::string_view text) {
  text = trim(text);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Calls f for each line; stops when f returns true.
template <typename F>
void for_each_line(std::string_view text, F&& f) {
  while (!text.empty()) {
    const auto end = text.find('\n');
    if (f(text.substr(0, end)) || end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

/// Value of the first line "key <separator> value", trimmed and without quotes.
std::string find_value(std::string_view text, std::string_view key, char separator) {
  std::string value;
  for_each_line(text, [&](std::string_view line) {
    const auto at = line.find(separator);
    if (at == std::string_view::npos || trim(line.substr(0, at)) != key) return false;
    std::string_view found = trim(line.substr(at + 1));
    if (found.size() >= 2 && found.front() == '"' && found.back() == '"') found = found.substr(1, found.size() - 2);
    value = found;
    return true;
  });
  return value;
}

template <typename T>
std::optional<T> least(std::optional<T> a, std::optional<T> b) {
  if (a && b) return std::min(*a, *b);
  return a ? a : b;
}

// ---- control groups

struct CgroupFolders {
  std::vector<fs::path> v2;  // the process's group, then its ancestors up to the mount
  std::vector<fs::path> v1_cpu;
  std::vector<fs::path> v1_memory;
};

/// `group` and its ancestors below `mount`. The mount itself closes the list: in a container it often is the process's
/// own group although /proc names the host's path.
std::vector<fs::path> with_ancestors(const fs::path& mount, std::string_view group) {
  std::vector<fs::path> folders;
  for (fs::path path = fs::path(group).relative_path(); !path.empty(); path = path.parent_path())
    folders.push_back(mount / path);
  folders.push_back(mount);
  return folders;
}

bool has_controller(std::string_view controllers, std::string_view wanted) {
  while (!controllers.empty()) {
    const auto comma = controllers.find(',');
    if (controllers.substr(0, comma) == wanted) return true;
    if (comma == std::string_view::npos) return false;
    controllers.remove_prefix(comma + 1);
  }
  return false;
}

/// Lines of /proc/self/cgroup are "hierarchy:controllers:path"; hierarchy 0 is version 2.
CgroupFolders find_cgroups(const fs::path& root) {
  const fs::path mount = root / "sys/fs/cgroup";
  CgroupFolders folders;
  const std::string text = read_text(root / "proc/self/cgroup").value_or("0::/\n");
  for_each_line(text, [&](std::string_view line) {
    const auto first = line.find(':');
    const auto second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) return false;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string_view group = trim(line.substr(second + 1));
    std::error_code ignored;
    if (controllers.empty())
      folders.v2 = with_ancestors(fs::exists(mount / "unified", ignored) ? mount / "unified" : mount, group);
    if (has_controller(controllers, "cpu"))
      folders.v1_cpu = with_ancestors(fs::exists(mount / "cpu", ignored) ? mount / "cpu" : mount / controllers, group);
    if (has_controller(controllers, "memory")) folders.v1_memory = with_ancestors(mount / "memory", group);
    return false;
  });
  return folders;
}

/// What a limit leaves: limit - (usage - page cache that can be dropped).
std::optional<std::int64_t> left_of_limit(const fs::path& folder, const char* limit_file, const char* usage_file,
                                          std::string_view reclaimable_key) {
  const auto limit = parse_cgroup_bytes(read_text(folder / limit_file).value_or(""));
  const auto usage = parse_cgroup_bytes(read_text(folder / usage_file).value_or(""));
  if (!limit || !usage) return limit;
  const std::string stat = read_text(folder / "memory.stat").value_or("");
  const auto reclaimable = parse_number<std::int64_t>(find_value(stat, reclaimable_key, ' ')).value_or(0);
  return std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, *usage - reclaimable));
}

// ---- processors and caches

/// Processors of this process's affinity mask, in order; empty when the system does not tell.
std::vector<int> affinity_processors() {
  // The mask of a large machine does not fit cpu_set_t; the kernel answers EINVAL until the buffer is large enough.
  for (int size = CPU_SETSIZE; size <= 1 << 20; size *= 2) {
    std::vector<cpu_set_t> sets(CPU_ALLOC_SIZE(size) / sizeof(cpu_set_t) + 1);
    const std::size_t bytes = CPU_ALLOC_SIZE(size);
    if (sched_getaffinity(0, bytes, sets.data()) != 0) continue;
    std::vector<int> processors;
    for (int cpu = 0; cpu < size; ++cpu)
      if (CPU_ISSET_S(cpu, bytes, sets.data())) processors.push_back(cpu);
    return processors;
  }
  return {};
}

std::optional<Cache> read_cache(const fs::path& folder) {
  const auto level = parse_number<int>(read_text(folder / "level").value_or(""));
  const auto bytes = parse_cache_size(read_text(folder / "size").value_or(""));
  const auto type = read_line(folder / "type");
  if (!level || !bytes || !type || *type == "Instruction") return std::nullopt;
  const auto sharers = parse_cpu_list_count(read_text(folder / "shared_cpu_list").value_or(""));
  return Cache{*level, *bytes, sharers.value_or(1)};
}

/// For hypervisors that hide the topology: cpuid through the C library, with the usual sharing of each level.
std::vector<Cache> caches_from_sysconf(int cores_online) {
  constexpr std::array kNames = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE};
  std::vector<Cache> caches;
  for (int i = 0; i < static_cast<int>(kNames.size()); ++i) {
    const std::int64_t bytes = sysconf(kNames[static_cast<std::size_t>(i)]);
    if (bytes > 0) caches.push_back({i + 1, bytes, i == 2 ? cores_online : 1});
  }
  return caches;
}

std::vector<Cache> read_caches(const fs::path& root, int processor, int cores_online) {
  std::vector<Cache> caches;
  const fs::path base = root / fmt::format("sys/devices/system/cpu/cpu{}/cache", processor);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(base, error))
    if (entry.path().filename().string().starts_with("index"))
      if (const auto cache = read_cache(entry.path())) caches.push_back(*cache);
  if (caches.empty()) return caches_from_sysconf(cores_online);
  std::sort(caches.begin(), caches.end(), [](const Cache& a, const Cache& b) { return a.level < b.level; });
  return caches;
}

std::optional<bool> read_smt(const fs::path& root) {
  const auto active = read_line(root / "sys/devices/system/cpu/smt/active");
  if (active) return *active == "1";
  return std::nullopt;
}

// ---- environment checks

EnvironmentCheck unknown(std::string check, std::string why) {
  return {std::move(check), true, "unknown", std::move(why)};
}

EnvironmentCheck check_governor(const fs::path& root) {
  const auto governor = read_line(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (!governor) return unknown("cpu governor", "no cpufreq in /sys, as usual in virtual machines");
  if (*governor == "performance") return {"cpu governor", true, *governor, ""};
  return {"cpu governor", false, *governor,
          "the clock follows the load; use the performance governor (cpupower frequency-set -g performance)"};
}

EnvironmentCheck check_turbo(const fs::path& root) {
  const auto no_turbo = read_line(root / "sys/devices/system/cpu/intel_pstate/no_turbo");
  const auto boost = read_line(root / "sys/devices/system/cpu/cpufreq/boost");
  if (!no_turbo && !boost) return unknown("cpu boost", "neither intel_pstate nor cpufreq tells");
  const bool on = no_turbo ? *no_turbo == "0" : *boost == "1";
  return {"cpu boost", true, on ? "on" : "off",
          on ? "clocks depend on temperature and on how many cores work; ceilings are measured in the same state" : ""};
}

EnvironmentCheck check_smt(const HostFacts& host) {
  if (!host.smt_active)
    return unknown("smt siblings", "the system does not tell; siblings may be hidden by the hypervisor");
  return {"smt siblings", true, *host.smt_active ? "active" : "off",
          *host.smt_active ? "two workers can share one core; ceilings are measured with the same workers" : ""};
}

EnvironmentCheck check_load(const HostFacts& host, const fs::path& root) {
  const std::string text = read_text(root / "proc/loadavg").value_or("");
  const auto load = parse_number<double>(std::string_view(text).substr(0, text.find(' ')));
  if (!load) return unknown("load average", "/proc/loadavg cannot be read");
  // Others' load has to fit beside our workers; half a processor is what a quiet system shows.
  const bool fits = *load + host.cores_used <= host.cores_online + 0.5;
  return {"load average", fits, fmt::format("{:.2f}", *load),
          fits ? ""
               : fmt::format("{} workers on {} processors compete with other work; wait until it ends", host.cores_used,
                             host.cores_online)};
}

EnvironmentCheck check_quota(const HostFacts& host) {
  if (!host.cores_quota) return {"cpu quota", true, "none", ""};
  const std::string value = fmt::format("{:g} cores", *host.cores_quota);
  if (*host.cores_quota < host.cores_used)
    return {"cpu quota", false, value,
            "less than one core: even one worker is stopped at times; raise the container's limit"};
  return {
      "cpu quota", true, value,
      fmt::format("{} of {} processors are used", host.cores_used, std::min(host.cores_online, host.cores_affinity))};
}

EnvironmentCheck check_huge_pages(const fs::path& root) {
  const auto text = read_line(root / "sys/kernel/mm/transparent_hugepage/enabled");
  if (!text) return unknown("transparent huge pages", "the kernel does not tell");
  const auto open = text->find('['), close = text->find(']');
  if (open == std::string::npos || close == std::string::npos || close < open)
    return unknown("transparent huge pages", "not understood: " + *text);
  const std::string mode = text->substr(open + 1, close - open - 1);
  return {"transparent huge pages", mode != "never", mode,
          mode == "never" ? "page walks slow large tensors; set /sys/kernel/mm/transparent_hugepage/enabled to madvise"
                          : ""};
}

EnvironmentCheck check_aslr(const fs::path& root) {
  const auto mode = read_line(root / "proc/sys/kernel/randomize_va_space");
  if (!mode) return unknown("address randomization", "the kernel does not tell");
  constexpr unsigned long kAskOnly = 0xffffffff;
  const bool off = *mode == "0" || (personality(kAskOnly) & ADDR_NO_RANDOMIZE) != 0;
  return {"address randomization", true, off ? "off" : "on",
          off ? "" : "placement differs between launches; compare medians over several launches"};
}

std::string sanitizer_names() {
  std::string names;
#if defined(__SANITIZE_ADDRESS__)
  names += " address";
#endif
#if defined(__SANITIZE_THREAD__)
  names += " thread";
#endif
  return names;
}

EnvironmentCheck check_build() {
#if defined(__OPTIMIZE__)
  const bool optimized = true;
#else
  const bool optimized = false;
#endif
  const std::string sanitizers = sanitizer_names();
  const std::string value =
      std::string(optimized ? "optimized" : "not optimized") + (sanitizers.empty() ? "" : ", sanitizers:") + sanitizers;
  const bool ok = optimized && sanitizers.empty();
  return {"build", ok, value, ok ? "" : "times of this build mean nothing; build the release preset"};
}

struct VariableRule {
  std::string_view prefix;  // of the name
  std::string_view fine;    // value that changes nothing; "*": any value is only recorded
  std::string_view detail;  // shown for other values
};
constexpr std::array kVariableRules = std::to_array<VariableRule>({
    {"ONEDNN_DEFAULT_FPMATH_MODE", "STRICT", "would let oneDNN lower the precision of fp32 products; unset it"},
    {"DNNL_DEFAULT_FPMATH_MODE", "STRICT", "would let oneDNN lower the precision of fp32 products; unset it"},
    {"NVIDIA_TF32_OVERRIDE", "", "changes which products run in tf32, whatever the recipe says; unset it"},
    {"ONEDNN_MAX_CPU_ISA", "ALL", "keeps oneDNN from instructions that this processor has; unset it"},
    {"DNNL_MAX_CPU_ISA", "ALL", "keeps oneDNN from instructions that this processor has; unset it"},
    {"OPENBLAS_", "*", "recorded: it changes which OpenBLAS kernels run"},
    {"OMP_", "*", "recorded: it changes OpenMP's threads"},
    {"GOMP_", "*", "recorded: it changes OpenMP's threads"},
    {"KMP_", "*", "recorded: it changes OpenMP's threads"},
    {"MALLOC_", "*", "recorded: it changes the C library's allocator"},
    {"GLIBC_TUNABLES", "*", "recorded: it changes the C library"},
});

std::optional<EnvironmentCheck> check_variable(std::string_view variable) {
  const auto at = variable.find('=');
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view name = variable.substr(0, at), value = variable.substr(at + 1);
  for (const VariableRule& rule : kVariableRules) {
    if (!name.starts_with(rule.prefix)) continue;
    const bool is_recorded_only = rule.fine == "*";
    const bool is_fine = is_recorded_only || value == rule.fine;
    return EnvironmentCheck{"variable " + std::string(name), is_fine, std::string(value),
                            is_fine && !is_recorded_only ? "" : std::string(rule.detail)};
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> parse_cgroup_v2_quota(std::string_view cpu_max) {
  cpu_max = trim(cpu_max);
  const auto space = cpu_max.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  return parse_cgroup_v1_quota(cpu_max.substr(0, space), cpu_max.substr(space + 1));
}

std::optional<double> parse_cgroup_v1_quota(std::string_view quota_us, std::string_view period_us) {
  const auto quota = parse_number<double>(quota_us), period = parse_number<double>(period_us);
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return *quota / *period;
}

std::optional<std::int64_t> parse_cgroup_bytes(std::string_view text) {
  const auto bytes = parse_number<std::int64_t>(text);
  constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max() / 2;
  if (!bytes || *bytes < 0 || *bytes > kUnlimited) return std::nullopt;
  return bytes;
}

std::optional<int> parse_cpu_list_count(std::string_view text) {
  text = trim(text);
  int count = 0;
  while (!text.empty()) {
    const auto comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    const auto dash = part.find('-');
    const auto first = parse_number<int>(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : parse_number<int>(part.substr(dash + 1));
    if (!first || !last || *last < *first) return std::nullopt;
    count += *last - *first + 1;
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  if (count == 0) return std::nullopt;
  return count;
}

std::optional<std::int64_t> parse_cache_size(std::string_view text) {
  text = trim(text);
  std::int64_t unit = 1;
  if (text.ends_with('K')) unit = kKiB;
  if (text.ends_with('M')) unit = kKiB * kKiB;
  if (text.ends_with('G')) unit = kKiB * kKiB * kKiB;
  if (unit > 1) text.remove_suffix(1);
  const auto number = parse_number<std::int64_t>(text);
  if (!number || *number <= 0) return std::nullopt;
  return *number * unit;
}

std::optional<std::int64_t> parse_kib_line(std::string_view text, std::string_view key) {
  const std::string value = find_value(text, key, ':');
  if (!value.ends_with("kB")) return std::nullopt;
  const auto number = parse_number<std::int64_t>(std::string_view(value).substr(0, value.size() - 2));
  if (!number) return std::nullopt;
  return *number * kKiB;
}

int cores_used(int online, int affinity, std::optional<double> quota) {
  int used = std::min(online, affinity);
  if (quota && *quota < used) used = static_cast<int>(std::floor(*quota));
  return std::max(1, used);
}

std::optional<double> read_cpu_quota(const fs::path& root) {
  const CgroupFolders folders = find_cgroups(root);
  std::optional<double> quota;
  for (const fs::path& folder : folders.v2)
    quota = least(quota, parse_cgroup_v2_quota(read_text(folder / "cpu.max").value_or("")));
  for (const fs::path& folder : folders.v1_cpu)
    quota = least(quota, parse_cgroup_v1_quota(read_text(folder / "cpu.cfs_quota_us").value_or(""),
                                               read_text(folder / "cpu.cfs_period_us").value_or("")));
  return quota;
}

std::optional<std::int64_t> read_memory_available_bytes(const fs::path& root) {
  auto available = parse_kib_line(read_text(root / "proc/meminfo").value_or(""), "MemAvailable");
  const CgroupFolders folders = find_cgroups(root);
  for (const fs::path& folder : folders.v2)
    available = least(available, left_of_limit(folder, "memory.max", "memory.current", "inactive_file"));
  for (const fs::path& folder : folders.v1_memory)
    available = least(available,
                      left_of_limit(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"));
  return available;
}

HostFacts read_host(const fs::path& root) {
  HostFacts host;
  host.os = find_value(read_text(root / "etc/os-release").value_or(""), "PRETTY_NAME", '=');
  utsname system{};
  if (uname(&system) == 0) host.kernel = std::string(system.sysname) + " " + system.release;
  host.cpu = find_value(read_text(root / "proc/cpuinfo").value_or(""), "model name", ':');
  host.memory_bytes = parse_kib_line(read_text(root / "proc/meminfo").value_or(""), "MemTotal")
                          .value_or(std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE));
  host.cores_online = std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  const std::vector<int> processors = affinity_processors();
  host.cores_affinity = processors.empty() ? host.cores_online : static_cast<int>(processors.size());
  host.cores_quota = read_cpu_quota(root);
  host.cores_used = cores_used(host.cores_online, host.cores_affinity, host.cores_quota);
  host.smt_active = read_smt(root);
  host.caches = read_caches(root, processors.empty() ? 0 : processors.front(), host.cores_online);
  return host;
}

ProcessMemory read_process_memory() {
  const std::string status = read_text("/proc/self/status").value_or("");
  const std::string rollup = read_text("/proc/self/smaps_rollup").value_or("");
  return {.rss_bytes = parse_kib_line(status, "VmRSS").value_or(0),
          .peak_rss_bytes = parse_kib_line(status, "VmHWM").value_or(0),
          .pss_bytes = parse_kib_line(rollup, "Pss"),
          .huge_page_bytes = parse_kib_line(rollup, "AnonHugePages")};
}

bool reset_peak_rss() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

std::vector<EnvironmentCheck> check_variables(std::span<const std::string> variables) {
  std::vector<EnvironmentCheck> checks;
  for (const std::string& variable : variables)
    if (auto check = check_variable(variable)) checks.push_back(std::move(*check));
  std::sort(checks.begin(), checks.end(), [](const auto& a, const auto& b) { return a.check < b.check; });
  return checks;
}

std::vector<EnvironmentCheck> check_environment(const HostFacts& host, const fs::path& root) {
  std::vector<EnvironmentCheck> checks = {check_governor(root),   check_turbo(root), check_smt(host),
                                          check_load(host, root), check_quota(host), check_huge_pages(root),
                                          check_aslr(root),       check_build()};
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  for (EnvironmentCheck& check : check_variables(variables)) checks.push_back(std::move(check));
  return checks;
}

}  // namespace mixroof
