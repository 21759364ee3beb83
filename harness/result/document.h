// The result document (DESIGN.md §7) while it is being made. A new key goes into the code that fills its section, into
// results/schema/, into results/schema/examples/ and, when readers rely on it, into kSchemaMinor: four places on
// purpose.
//
// Unknown values: null, never 0, with a reason. Where the schema's description of the key does not give the reason, it
// stands beside the value as "<key>_reason" (set_number does this), or it is the reason of the case.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "harness/stats/summary.h"
#include "harness/status.h"

namespace mixroof {

/// Keys keep the order in which they were set.
using Json = nlohmann::ordered_json;

inline constexpr int kSchemaMajor = 1;
inline constexpr int kSchemaMinor = 0;
std::string schema_name();  // "mixroof/result/1.0"

enum class RunStatus { complete, interrupted, failed };
std::string_view name(RunStatus status);

/// A document with every section of §7 in its order. Until finish() its run.status is "interrupted", so that a
/// checkpoint of a run that is killed afterwards tells the truth.
class Document {
 public:
  /// Sections are empty; host, device and tool are objects without keys, workload is null.
  Document();
  /// Goes on with a document that was read, for --resume: rows are kept, run.status is "interrupted" again.
  static Document resume(Json document);

  /// Replaces a section of §7: "run", "tool", "host", "device", "environment", "workload", "ceilings", "kernels" or
  /// "steps". Setting run leaves run.status to finish().
  void set(std::string_view section, Json value);

  /// tool.tuning: choices made by timing, known only once the passes have run.
  void set_tuning(Json choices) { json_["tool"]["tuning"] = std::move(choices); }

  /// Append a row, or replace the one with the same identity: "check", "id", "id", "recipe". `put` after each finished
  /// block of samples and a checkpoint keep what was measured.
  void put_environment(Json row) { put("environment", "check", std::move(row)); }
  void put_ceiling(Json row) { put("ceilings", "id", std::move(row)); }
  void put_kernel(Json row) { put("kernels", "id", std::move(row)); }
  void put_step(Json row) { put("steps", "recipe", std::move(row)); }
  /// The row with this identity, or null.
  const Json* find_kernel(std::string_view id) const { return find("kernels", "id", id); }
  const Json* find_step(std::string_view recipe) const { return find("steps", "recipe", recipe); }

  void finish(RunStatus status, double wall_s);

  const Json& json() const { return json_; }

 private:
  void put(const char* list, const char* identity, Json row);
  const Json* find(const char* list, const char* identity, std::string_view wanted) const;

  Json json_;
};

/// STAT of §7. Figures that do not exist become null: all of them without samples, stddev below two samples, clock_hz
/// and throttled without clocks.
Json stat_to_json(const Summary& summary);
/// The reverse; keys that are missing or null stay unknown. Throws UsageError when `stat` is no object.
Summary stat_from_json(const Json& stat);

/// A finite number as it is, anything else null.
Json number_or_null(double value);
template <typename T>
Json optional_or_null(const std::optional<T>& value) {
  if (!value) return nullptr;
  return *value;
}
/// object[key] = value; when it is not finite or absent, null and object["<key>_reason"] = reason.
void set_number(Json& object, const std::string& key, std::optional<double> value, std::string_view reason);
/// status and reason of a case. `reason` must not be empty unless the status is ok; it is null then.
void set_status(Json& row, Status status, std::string_view reason = {});

/// "2026-01-15T10:00:00Z" for seconds since 1970.
std::string utc_text(std::int64_t unix_s);

}  // namespace mixroof
