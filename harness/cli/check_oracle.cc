#include "harness/cli/check_oracle.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "harness/cli/progress.h"
#include "harness/result/document.h"
#include "harness/status.h"

namespace mixroof::cli {
namespace {

bool is_judged(const OracleRow& row) {
  return row.verdict == OracleVerdict::pass || row.verdict == OracleVerdict::fail;
}

std::string figure(const OracleRow& row, double value) { return is_judged(row) ? fmt::format("{:.3g}", value) : "-"; }

std::string explanation(const OracleRow& row) {
  if (row.where.empty() || row.detail.empty()) return row.where + row.detail;
  return fmt::format("{} ({})", row.where, row.detail);
}

class OracleTable {
 public:
  explicit OracleTable(OutputFormat format) : format_(format) {}

  void begin(const std::string& what) { progress_.show({.what = what, .done = rows_.size()}); }

  void add(const OracleRow& row) {
    ++counts_[static_cast<std::size_t>(row.verdict)];
    if (row.verdict == OracleVerdict::fail)
      progress_.finish_case(fmt::format("FAIL {}/{}: {}", row.group, row.item, row.where));
    rows_.push_back({{"group", row.group},
                     {"item", row.item},
                     {"result", row.verdict == OracleVerdict::fail ? "fail" : name(row.verdict)},
                     {"compared", row.compared},
                     {"worst", is_judged(row) ? number_or_null(row.worst) : Json()},
                     {"limit", is_judged(row) ? number_or_null(row.limit) : Json()},
                     {"where", row.where.empty() ? Json() : Json(row.where)},
                     {"detail", row.detail.empty() ? Json() : Json(row.detail)}});
    table_.add_row({std::string(name(row.verdict)), row.item.empty() ? row.group : row.group + "/" + row.item,
                    fmt::format("{}", row.compared), figure(row, row.worst), figure(row, row.limit), explanation(row)});
  }

  void conclude(const OracleOptions& options) {
    progress_.clear();
    if (format_ == OutputFormat::json) {
      print(Json{{"oracle", options.folder},
                 {"device", options.device},
                 {"rows", rows_},
                 {"passed", count(OracleVerdict::pass)},
                 {"failed", count(OracleVerdict::fail)},
                 {"skipped", count(OracleVerdict::skipped)},
                 {"absent", count(OracleVerdict::absent)}}
                .dump(2) +
            "\n");
      return;
    }
    print(table_, format_);
    print(fmt::format("\n{} passed, {} failed, {} skipped, {} absent (oracle {}, device {})\n",
                      count(OracleVerdict::pass), count(OracleVerdict::fail), count(OracleVerdict::skipped),
                      count(OracleVerdict::absent), options.folder, options.device));
  }

 private:
  std::int64_t count(OracleVerdict verdict) const { return counts_[static_cast<std::size_t>(verdict)]; }

  OutputFormat format_;
  Json rows_ = Json::array();
  Table table_{{{"result"},
                {"what"},
                {"values", Align::right, 1},
                {"worst error", Align::right},
                {"limit", Align::right},
                {"where", Align::left}}};
  std::array<std::int64_t, 4> counts_ = {};
  Progress progress_;
};

}  // namespace

int print_oracle_check(const OracleOptions& options, OutputFormat format) {
  OracleTable table(format);
  const int failures = check_oracle(
      options, [&](const OracleRow& row) { table.add(row); }, [&](const std::string& what) { table.begin(what); });
  table.conclude(options);
  return failures > 0 ? kExitFinding : kExitOk;
}

}  // namespace mixroof::cli
