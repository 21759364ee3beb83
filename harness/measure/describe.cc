#include "harness/measure/describe.h"

#include <fmt/format.h>

#include <chrono>

#include "harness/backend/host.h"
#include "harness/measure/tool_facts.h"

namespace mixroof {
namespace {

Json host_json(const HostFacts& host, const DeviceFacts& device) {
  return {{"os", host.os},
          {"kernel", host.kernel},
          {"cpu", host.cpu},
          {"cpu_paths", device.paths},
          {"cores_online", host.cores_online},
          {"cores_affinity", host.cores_affinity},
          {"cores_quota", optional_or_null(host.cores_quota)},
          {"cores_used", host.cores_used},
          {"memory_bytes", host.memory_bytes}};
}

}  // namespace

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void describe_run(Document& document, std::string_view label, const std::vector<std::string>& command,
                  std::uint64_t seed, const DeviceFacts& device) {
  const HostFacts host = read_host();
  const std::string started = utc_text(unix_seconds());
  document.set("run", {{"id", fmt::format("{}-{}-{}", label, started, seed)},
                       {"started", started},
                       {"wall_s", nullptr},
                       {"command", command},
                       {"status", nullptr},
                       {"seed", seed}});
  document.set("tool", tool_json());
  document.set("host", host_json(host, device));
  for (const EnvironmentCheck& check : check_environment(host))
    document.put_environment(
        {{"check", check.check}, {"ok", check.ok}, {"value", check.value}, {"detail", check.detail}});
}

int document_exit_code(const Json& document, RunStatus status) {
  if (status == RunStatus::interrupted) return kExitInterrupted;
  bool any_ran = false, any_finding = false;
  for (const char* list : {"kernels", "steps"})
    for (const Json& row : document.at(list)) {
      const std::string word = row.at("status");
      any_finding = any_finding || word == name(Status::incorrect) || word == name(Status::failed);
      any_ran = any_ran || !row.at("time_s").is_null();
    }
  if (!document.at("ceilings").empty()) any_ran = true;
  if (any_finding) return kExitFinding;
  return any_ran ? kExitOk : kExitImpossible;
}

}  // namespace mixroof
