#include "harness/result/document.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <ctime>
#include <stdexcept>

namespace mixroof {
namespace {

double number_at(const Json& stat, const char* key) {
  const auto found = stat.find(key);
  return found != stat.end() && found->is_number() ? found->get<double>() : Summary::kUnknown;
}

template <typename T>
T value_at(const Json& stat, const char* key, T otherwise) {
  const auto found = stat.find(key);
  return found != stat.end() && !found->is_null() ? found->get<T>() : otherwise;
}

std::vector<double> numbers_at(const Json& array) {
  std::vector<double> values;
  for (const Json& value : array) values.push_back(value.is_number() ? value.get<double>() : Summary::kUnknown);
  return values;
}

bool has_identity(const Json& row, const char* identity, std::string_view wanted) {
  const auto found = row.find(identity);
  return found != row.end() && found->is_string() && found->get_ref<const std::string&>() == wanted;
}

}  // namespace

std::string schema_name() { return fmt::format("mixroof/result/{}.{}", kSchemaMajor, kSchemaMinor); }

std::string_view name(RunStatus status) {
  switch (status) {
    case RunStatus::complete:
      return "complete";
    case RunStatus::interrupted:
      return "interrupted";
    case RunStatus::failed:
      return "failed";
  }
  return "failed";
}

Document::Document() {
  json_["schema"] = schema_name();
  json_["run"] = {{"id", nullptr},
                  {"started", nullptr},
                  {"wall_s", nullptr},
                  {"command", Json::array()},
                  {"status", name(RunStatus::interrupted)},
                  {"seed", nullptr}};
  for (const char* section : {"tool", "host", "device"}) json_[section] = Json::object();
  json_["environment"] = Json::array();
  json_["workload"] = nullptr;
  for (const char* section : {"ceilings", "kernels", "steps"}) json_[section] = Json::array();
}

Document Document::resume(Json document) {
  Document resumed;
  resumed.json_ = std::move(document);
  resumed.json_["schema"] = schema_name();
  resumed.json_["run"]["status"] = name(RunStatus::interrupted);
  return resumed;
}

void Document::set(std::string_view section, Json value) {
  const auto found = json_.find(std::string(section));
  if (found == json_.end() || section == "schema")
    throw std::logic_error(fmt::format("the result document has no section '{}'", section));
  if (section == "run") value["status"] = json_["run"]["status"];
  *found = std::move(value);
}

const Json* Document::find(const char* list, const char* identity, std::string_view wanted) const {
  for (const Json& row : json_.at(list))
    if (has_identity(row, identity, wanted)) return &row;
  return nullptr;
}

void Document::put(const char* list, const char* identity, Json row) {
  const std::string wanted = row.at(identity).get<std::string>();
  for (Json& present : json_[list]) {
    if (!has_identity(present, identity, wanted)) continue;
    present = std::move(row);
    return;
  }
  json_[list].push_back(std::move(row));
}

void Document::finish(RunStatus status, double wall_s) {
  json_["run"]["status"] = name(status);
  json_["run"]["wall_s"] = number_or_null(wall_s);
}

Json stat_to_json(const Summary& summary) {
  Json stat;
  stat["n"] = summary.n;
  stat["median"] = number_or_null(summary.median);
  stat["low"] = number_or_null(summary.low);
  stat["high"] = number_or_null(summary.high);
  stat["confidence"] = summary.empty() ? Json(nullptr) : number_or_null(summary.confidence);
  stat["mean"] = number_or_null(summary.mean);
  stat["stddev"] = number_or_null(summary.stddev.value_or(Summary::kUnknown));
  stat["min"] = number_or_null(summary.min);
  stat["max"] = number_or_null(summary.max);
  stat["samples"] = summary.samples;
  stat["clock_hz"] = nullptr;
  if (summary.clock_hz) {
    stat["clock_hz"] = Json::array();
    for (const double clock : *summary.clock_hz) stat["clock_hz"].push_back(number_or_null(clock));
  }
  stat["discarded"] = summary.discarded;
  stat["throttled"] = summary.clock_hz ? Json(summary.throttled) : Json(nullptr);
  stat["converged"] = summary.converged;
  return stat;
}

Summary stat_from_json(const Json& stat) {
  if (!stat.is_object()) throw UsageError("a summary of samples has to be an object, found " + stat.dump());
  Summary summary;
  summary.n = value_at<std::int64_t>(stat, "n", 0);
  summary.median = number_at(stat, "median");
  summary.low = number_at(stat, "low");
  summary.high = number_at(stat, "high");
  summary.confidence = value_at(stat, "confidence", 0.0);
  summary.mean = number_at(stat, "mean");
  if (const double stddev = number_at(stat, "stddev"); std::isfinite(stddev)) summary.stddev = stddev;
  summary.min = number_at(stat, "min");
  summary.max = number_at(stat, "max");
  if (stat.contains("samples")) summary.samples = numbers_at(stat["samples"]);
  if (stat.contains("clock_hz") && stat["clock_hz"].is_array()) summary.clock_hz = numbers_at(stat["clock_hz"]);
  summary.discarded = value_at<std::int64_t>(stat, "discarded", 0);
  summary.throttled = value_at(stat, "throttled", false);
  summary.converged = value_at(stat, "converged", false);
  return summary;
}

Json number_or_null(double value) {
  if (!std::isfinite(value)) return nullptr;
  return value;
}

void set_number(Json& object, const std::string& key, std::optional<double> value, std::string_view reason) {
  object[key] = number_or_null(value.value_or(Summary::kUnknown));
  if (object[key].is_null())
    object[key + "_reason"] = reason;
  else
    object.erase(key + "_reason");
}

void set_status(Json& row, Status status, std::string_view reason) {
  if (status != Status::ok && reason.empty())
    throw std::logic_error(fmt::format("a case with status {} needs a reason", name(status)));
  row["status"] = name(status);
  row["reason"] = status == Status::ok ? Json(nullptr) : Json(reason);
}

std::string utc_text(std::int64_t unix_s) {
  const std::time_t time = unix_s;
  std::tm utc{};
  gmtime_r(&time, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec);
}

}  // namespace mixroof
