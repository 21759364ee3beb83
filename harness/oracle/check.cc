#include "harness/oracle/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include "harness/status.h"

namespace mixroof {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> group_names() {
  std::vector<std::string> names;
  for (const OracleGroup& group : oracle_groups()) names.emplace_back(group.name);
  return names;
}

void check_group(const OracleGroup& group, OracleSession& session) {
  if (session.manifests(group.name).empty()) {
    session.add({.group = std::string(group.name),
                 .item = "",
                 .verdict = OracleVerdict::absent,
                 .where = {},
                 .detail = fmt::format("no manifest in {}/{}", session.options().folder, group.name)});
    return;
  }
  const auto refuse = [&](const std::exception& error) {  // what no reader foresaw: still the folder's fault
    throw UsageError(
        fmt::format("{}/{}: a manifest is malformed ({})", session.options().folder, group.name, error.what()));
  };
  try {
    group.check(session);
  } catch (const nlohmann::json::exception& error) {
    refuse(error);
  } catch (const std::out_of_range& error) {
    refuse(error);
  }
}

}  // namespace

std::string_view name(OracleVerdict verdict) {
  switch (verdict) {
    case OracleVerdict::pass:
      return "pass";
    case OracleVerdict::fail:
      return "FAIL";
    case OracleVerdict::skipped:
      return "skipped";
    case OracleVerdict::absent:
      return "absent";
  }
  return "skipped";
}

OracleSession::OracleSession(OracleOptions options, Visit visit, Begin begin)
    : options_(std::move(options)), visit_(std::move(visit)), begin_(std::move(begin)) {
  std::error_code error;
  if (!fs::is_directory(options_.folder, error))
    throw UsageError(
        fmt::format("{}: no folder; name one that is laid out as the oracle's README describes", options_.folder));
  BackendResult opened = open_backend(options_.device, options_.threads);
  if (!opened.backend) throw Error(Status::no_device, fmt::format("{}: {}", options_.device, opened.support.reason));
  device_ = std::move(opened.backend);
  if (device_->facts().backend == "reference")
    throw UsageError(
        "--device reference: it runs beside the device anyway, in double; name the device that rounds (cpu)");
  reference_ = make_reference_backend();
}

std::unique_ptr<const OracleFile> OracleSession::open(const std::string& group, const std::string& file) {
  const std::string stem = fmt::format("{}/{}/{}", options_.folder, group, file);
  if (fs::exists(stem + ".json")) return std::make_unique<const OracleFile>(stem);
  add({.group = group,
       .item = file,
       .verdict = OracleVerdict::absent,
       .where = {},
       .detail = stem + ".json is absent"});
  return nullptr;
}

std::vector<std::string> OracleSession::manifests(std::string_view group, std::string_view prefix) const {
  const fs::path folder = fs::path(options_.folder) / group;
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (const std::string stem = entry.path().stem().string();
        entry.path().extension() == ".json" && stem.starts_with(prefix))
      names.push_back(stem);
  std::sort(names.begin(), names.end());
  return names;
}

void OracleSession::add(OracleRow row) {
  if (row.verdict == OracleVerdict::pass || row.verdict == OracleVerdict::fail) ++judged_;
  visit_(row);
}

int check_oracle(const OracleOptions& options, const OracleSession::Visit& visit, const OracleSession::Begin& begin) {
  int failures = 0;
  OracleSession session(
      options,
      [&](const OracleRow& row) {
        failures += row.verdict == OracleVerdict::fail;
        visit(row);
      },
      begin);
  for (const std::string& wanted : options.groups) {
    const std::vector<std::string> names = group_names();
    if (std::find(names.begin(), names.end(), wanted) == names.end())
      throw_unknown("oracle group", wanted, names, "mixroof check --help");
  }
  for (const OracleGroup& group : oracle_groups()) {
    const auto& wanted = options.groups;
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), group.name) != wanted.end())
      check_group(group, session);
  }
  if (session.judged() == 0)
    throw UsageError(fmt::format("{}: nothing to check; expected manifests in {}", options.folder,
                                 fmt::join(options.groups.empty() ? group_names() : options.groups, ", ")));
  return failures;
}

}  // namespace mixroof
