#include "harness/cli/run_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "harness/cli/quantity.h"
#include "harness/cli/table.h"

namespace mixroof::cli {
namespace {

constexpr std::size_t kKernelRows = 12;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// The value at a JSON pointer, null when any part of it is missing.
const Json& at(const Json& object, const std::string& pointer) {
  static const Json null;
  const nlohmann::json_pointer<std::string> p(pointer);
  return object.contains(p) ? object.at(p) : null;
}
double number(const Json& object, const std::string& pointer) {
  const Json& value = at(object, pointer);
  return value.is_number() ? value.get<double>() : kNan;
}
std::string text(const Json& object, const std::string& pointer) {
  const Json& value = at(object, pointer);
  return value.is_string() ? value.get<std::string>() : "-";
}
std::string gib(const Json& object, const std::string& pointer) {
  const Json& value = at(object, pointer);
  return value.is_number() ? bytes_text(value.get<std::int64_t>()) : "-";
}
std::string fixed(double value, int digits) { return std::isnan(value) ? "-" : fmt::format("{:.{}f}", value, digits); }

/// "203 ms ±1.2 %": median and half of its interval.
std::string time_with_interval(const Json& stat) {
  const double median = number(stat, "/median");
  if (std::isnan(median)) return "-";
  return fmt::format("{} ±{:.1f} %", time_text(median), 50 * (number(stat, "/high") - number(stat, "/low")) / median);
}

std::string headline(const Json& document) {
  const Json& workload = at(document, "/workload");
  std::string line = fmt::format(
      "{} ({:.1f} M parameters) on {}, {} workers: {} tokens per update, {} updates of every recipe on the same {} "
      "tokens\n",
      text(workload, "/model/name"), number(workload, "/model/parameters") / 1e6, text(document, "/device/name"),
      at(document, "/host/cores_used").dump(), at(workload, "/tokens_per_update").dump(),
      at(workload, "/updates").dump(), text(workload, "/data/kind"));
  for (const Json& check : at(document, "/environment"))
    if (check.contains("ok") && !check["ok"].get<bool>())
      line += fmt::format("warning: {}: {} ({})\n", text(check, "/check"),
                          at(check, "/value").is_string() ? text(check, "/value") : at(check, "/value").dump(),
                          text(check, "/detail"));
  if (text(document, "/run/status") != "complete")
    line += fmt::format("this run is {}: rows may be missing\n", text(document, "/run/status"));
  return line;
}

std::string recipe_name(const Json& step) {
  std::string label = text(step, "/recipe");
  if (at(step, "/emulated") == Json(true)) label += " (emulated)";
  if (at(step, "/diagnostic") == Json(true)) label += " (diagnostic)";
  return label;
}

std::string phase_split(const Json& step) {
  const double total = number(step, "/time_s/median");
  const auto share = [&](const char* phase) {
    return 100 * number(step, fmt::format("/phases/{}/median", phase)) / total;
  };
  if (std::isnan(share("forward"))) return "-";
  return fmt::format("{:.0f}/{:.0f}/{:.0f}", share("forward"), share("backward"), share("update"));
}

std::string last_loss(const Json& step, const char* key) {
  const Json& losses = at(step, fmt::format("/numerics/{}", key));
  return losses.is_array() && !losses.empty() && losses.back().is_number() ? fixed(losses.back().get<double>(), 4) : "-";
}

std::string speed_table(const Json& document, int width) {
  const bool recomputes = at(document, "/workload/checkpointing").is_string();
  std::vector<Column> columns = {{"recipe"},
                                 {"time/update", Align::right},
                                 {"tokens/s", Align::right, 1},
                                 {"vs fp32", Align::right},
                                 {"numerics", Align::left, 2},
                                 {"fwd/bwd/upd %", Align::right, 4},
                                 {"of floor", Align::right, 3}};
  if (recomputes) columns.push_back({"recomputing", Align::right, 2});
  Table table(columns);
  std::string refused;
  bool any_emulated = false;
  for (const Json& step : document.at("steps")) {
    any_emulated = any_emulated || at(step, "/emulated") == Json(true);
    if (at(step, "/time_s").is_null()) {
      refused += fmt::format("{}: {}, {}\n", recipe_name(step), text(step, "/status"), text(step, "/reason"));
      continue;
    }
    const double speedup = number(step, "/speedup_vs_fp32/median");
    std::vector<std::string> row = {recipe_name(step), time_with_interval(step["time_s"]),
                                    fixed(number(step, "/tokens_per_s/median"), 0),
                                    std::isnan(speedup) ? "-" : fmt::format("{:.2f}x", speedup),
                                    text(step, "/numerics/verdict"), phase_split(step),
                                    percent_text(number(step, "/floor_fraction"))};
    const double recompute_s = number(step, "/cost/recompute");
    if (recomputes) row.push_back(std::isnan(recompute_s) ? "-" : time_text(recompute_s));
    table.add_row(row);
  }
  if (table.empty() && refused.empty()) return "";
  std::string note;
  if (any_emulated)
    note = "emulated: stored and rounded in that format, computed in fp32; its times say nothing about the format's own speed\n";
  return "\nWhole updates (forward, backward, optimizer)\n" + (table.empty() ? "" : table.text(width)) + refused + note;
}

std::string memory_table(const Json& document, int width) {
  Table table({{"recipe"},
               {"state B/param", Align::right},
               {"state", Align::right, 1},
               {"peak planned", Align::right},
               {"peak counted", Align::right},
               {"peak seen by system", Align::right},
               {"activations", Align::right, 2},
               {"workspace", Align::right, 3}});
  std::string refused;
  for (const Json& step : document.at("steps")) {
    if (at(step, "/memory").is_null()) {
      if (step.contains("memory_reason"))
        refused += fmt::format("{}: {}\n", text(step, "/recipe"), text(step, "/memory_reason"));
      continue;
    }
    const std::string p = "/memory/peak_bytes";
    table.add_row({text(step, "/recipe"), fixed(number(step, "/memory/persistent_bytes/per_param"), 2),
                   gib(step, "/memory/persistent_bytes/total"), gib(step, p + "/live_planned"),
                   gib(step, p + "/ledger"), gib(step, p + "/observed"), gib(step, "/memory/activation_peak_bytes"),
                   gib(step, "/memory/workspace_bytes")});
  }
  if (table.empty() && refused.empty()) return "";
  return "\nMemory (a process per recipe)\n" + (table.empty() ? "" : table.text(width)) + refused;
}

/// "0.52 %"; small shares keep their digits.
std::string share(const Json& object, const std::string& pointer) {
  const double value = number(object, pointer);
  return std::isnan(value) ? "-" : fmt::format("{:.2g} %", 100 * value);
}
std::string significant(double value) { return std::isnan(value) ? "-" : fmt::format("{:.2g}", value); }

/// "update 3, micro-batch 2, backward, layer 1, h.1.attn backward, tensor h.1.attn.dqkv"
std::string place_text(const Json& place) {
  std::string where = fmt::format("update {}", at(place, "/update").dump());
  if (at(place, "/micro_batch").is_number()) where += fmt::format(", micro-batch {}", at(place, "/micro_batch").dump());
  where += fmt::format(", {}", text(place, "/phase"));
  if (at(place, "/layer").is_number()) where += fmt::format(", layer {}", at(place, "/layer").dump());
  where += fmt::format(", {}, tensor {}", text(place, "/op"), text(place, "/tensor"));
  if (at(place, "/rel_l2").is_number())
    where += fmt::format(" ({:.2g} off, limit {:.2g})", number(place, "/rel_l2"), number(place, "/limit"));
  return where;
}

/// Why a recipe is not ok, and where it began; empty for one that is.
std::string numerics_findings(const Json& step, int width) {
  const Json& numerics = at(step, "/numerics");
  if (text(numerics, "/verdict") == "ok") return "";
  std::string lines;
  const auto add = [&](const std::string& line) {
    bool is_first = true;
    for (const std::string& part : width > 0 ? fold(line, width - 2) : std::vector<std::string>{line}) {
      lines += (is_first ? "" : "  ") + part + "\n";
      is_first = false;
    }
  };
  add(fmt::format("{}: {}", text(step, "/recipe"), text(numerics, "/reason")));
  if (at(numerics, "/first_nonfinite").is_object())
    add(fmt::format("- first value that is not finite: {}", place_text(at(numerics, "/first_nonfinite"))));
  if (at(numerics, "/first_divergence").is_object())
    add(fmt::format("- first divergence from fp32: {}", place_text(at(numerics, "/first_divergence"))));
  return lines;
}

std::string numerics_table(const Json& document, int width) {
  Table table({{"recipe"},
               {"verdict"},
               {"last loss / fp32", Align::right, 2},
               {"grad rel L2", Align::right},
               {"cosine", Align::right, 5},
               {"update rel L2", Align::right, 1},
               {"underflow", Align::right, 3},
               {"absorbed", Align::right, 4},
               {"saturated", Align::right, 6},
               {"skipped", Align::right, 7}});
  std::string findings;
  for (const Json& step : document.at("steps")) {
    const Json& n = at(step, "/numerics");
    if (!n.is_object()) continue;
    const double cosine = number(n, "/grad_cosine");
    table.add_row({recipe_name(step), at(n, "/verdict").is_null() ? "not judged" : text(n, "/verdict"),
                   fmt::format("{} / {}", last_loss(step, "loss"), last_loss(step, "loss_reference")),
                   significant(number(n, "/grad_rel_l2")), std::isnan(cosine) ? "-" : fmt::format("{:.6f}", cosine),
                   significant(number(n, "/update_rel_l2")), share(n, "/underflow_fraction"),
                   share(n, "/absorbed_update_fraction"), share(n, "/saturated_fraction"), at(n, "/overflow_count").dump()});
    findings += numerics_findings(step, width);
  }
  if (table.empty()) return "";
  return "\nNumerics (beside fp32 on equal inputs, the worst of the compared updates)\n" +
         table.text(width) + findings;
}

double seconds_per_update(const Json& row) { return number(row, "/time_s/median") * number(row, "/count_per_update"); }

std::string kernel_rate(const Json& row) {
  const double time = number(row, "/time_s/median");
  double flops = 0;
  for (const auto& [format, count] : at(row, "/flops/useful").items()) flops += count.get<double>();
  const double bytes = number(row, "/bytes/read") + number(row, "/bytes/written");
  // Without ceilings the intensity tells: a copy moves bytes, a product computes.
  constexpr double kComputes = 8;  // FLOPs a byte
  const std::string bound = text(row, "/roof/bound");
  if (bound == "compute" || (bound == "-" && flops > kComputes * bytes)) return flop_rate_text(flops / time);
  return byte_rate_text(bytes / time);
}

std::string shape_text(const Json& row) {
  std::string shape;
  for (const auto& [key, value] : at(row, "/shape").items())
    shape += fmt::format("{}{}={}", shape.empty() ? "" : " ", key, value.dump());
  return shape;
}

/// The ops that take most of an update, across recipes, as they ran inside it; else with hot caches.
std::string kernel_table(const Json& document, int width) {
  std::vector<const Json*> rows;
  for (const char* cache : {"in_step", "hot"}) {
    for (const Json& row : document.at("kernels"))
      if (text(row, "/cache") == cache && !std::isnan(seconds_per_update(row))) rows.push_back(&row);
    if (!rows.empty()) break;
  }
  if (rows.empty()) return "";
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Json* a, const Json* b) { return seconds_per_update(*a) > seconds_per_update(*b); });
  const std::size_t shown = std::min(rows.size(), kKernelRows);
  Table table({{"kernel"},
               {"recipe", Align::left, 1},
               {"shape", Align::left, 4},
               {"per update", Align::right},
               {"times", Align::right, 3},
               {"rate", Align::right},
               {"of roof", Align::right},
               {"bound", Align::left, 2},
               {"implementation", Align::left, 5}});
  for (std::size_t i = 0; i < shown; ++i) {
    const Json& row = *rows[i];
    const bool above = at(row, "/roof/above_ceiling") == Json(true);
    table.add_row({text(row, "/kernel") + " " + text(row, "/variant"), text(row, "/recipe"), shape_text(row),
                   time_text(seconds_per_update(row)), at(row, "/count_per_update").dump(), kernel_rate(row),
                   percent_text(number(row, "/roof/fraction")) + (above ? " !" : ""), text(row, "/roof/bound"),
                   text(row, "/implementation")});
  }
  return fmt::format("\nSlowest kernels ({} of {}, {}; all in the document)\n", shown, rows.size(),
                     text(*rows.front(), "/cache") == "in_step" ? "timed inside the update" : "alone, hot caches") +
         table.text(width) + "!: above its roof by more than 2 %, do not trust it\n";
}

std::string ceiling_table(const Json& document, int width) {
  if (document.at("ceilings").empty()) return "";
  Table table({{"ceiling"}, {"rate", Align::right}, {"implementation", Align::left, 1}});
  for (const Json& c : document.at("ceilings"))
    table.add_row({text(c, "/id"),
                   text(c, "/kind") == "compute" ? flop_rate_text(number(c, "/measured/median"))
                                                 : byte_rate_text(number(c, "/measured/median")),
                   text(c, "/implementation")});
  return "\nCeilings of this machine, measured in this run\n" + table.text(width);
}

}  // namespace

std::string run_summary(const Json& document, int width) {
  return headline(document) + speed_table(document, width) + numerics_table(document, width) + memory_table(document, width) +
         kernel_table(document, width) + ceiling_table(document, width);
}

}  // namespace mixroof::cli
