// The product against an oracle folder (ground truth, laid out as the oracle's README describes): its codecs, kernels,
// lowering, executor and scaler are run on the stored inputs and judged by the stored results, at the README's
// tolerances. Any subset of the folder will do, and any shapes, names and counts: all of them come from the manifests.
// To add a group: one file in this folder and its name in CMakeLists.txt.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/execute/oracle_file.h"
#include "harness/numeric/recipe.h"

namespace mixroof {

enum class OracleVerdict : std::uint8_t {
  pass,
  fail,
  skipped,  // the folder has it, nothing here can be judged by it: `detail` says why
  absent,   // the folder does not have it
};
std::string_view name(OracleVerdict verdict);

struct OracleRow {
  std::string group;  // "scaling"
  std::string item;   // "traces/reload_in_the_middle"
  OracleVerdict verdict = OracleVerdict::skipped;
  std::int64_t compared = 0;    // values
  double worst = 0, limit = 0;  // error and limit of the value nearest to its limit, or furthest beyond it
  std::string where;            // that value's place and what was got; empty when every error is 0
  std::string detail;           // how it was run, or why not
};

struct OracleOptions {
  std::string folder;
  std::vector<std::string> groups = {};     // empty: all
  std::vector<const Recipe*> recipes = {};  // of whole updates; empty: all
  std::string device = "cpu";               // what runs formats other than double
  int threads = 0;                          // of the device; 0: its own choice
  bool exhaustive = true;                   // all 2^32 inputs of the encoders, two to three minutes of processor time
};

/// What groups are given: the folder, the backends, and where rows go.
class OracleSession {
 public:
  using Visit = std::function<void(const OracleRow&)>;
  using Begin = std::function<void(const std::string& what)>;

  /// Throws UsageError when the folder is none, Error(no_device) with the reason when the device is not there.
  OracleSession(OracleOptions options, Visit visit, Begin begin);

  const OracleOptions& options() const { return options_; }
  Backend& device() { return *device_; }
  Backend& reference() { return *reference_; }

  /// "GROUP/NAME" opened; null, with a row that says so, when its manifest is absent.
  std::unique_ptr<const OracleFile> open(const std::string& group, const std::string& name);
  /// Names (without ending, sorted) of the manifests of a group that start with `prefix`.
  std::vector<std::string> manifests(std::string_view group, std::string_view prefix = {}) const;

  void begin(const std::string& what) { begin_(what); }  // for progress
  void add(OracleRow row);
  std::int64_t judged() const { return judged_; }

 private:
  OracleOptions options_;
  Visit visit_;
  Begin begin_;
  std::unique_ptr<Backend> device_, reference_;
  std::int64_t judged_ = 0;
};

struct OracleGroup {
  std::string_view name;  // also its folder's
  void (*check)(OracleSession& session);
};

/// Every group of the build, in the order of CMakeLists.txt.
std::span<const OracleGroup> oracle_groups();

/// Checks everything that the folder has, calls `visit` for each row in order and `begin` before longer work, and
/// returns the number of failures. Throws UsageError when the folder is none, has nothing to check, names an unknown
/// group, or a file is malformed (the message names file and key).
int check_oracle(
    const OracleOptions& options, const OracleSession::Visit& visit,
    const OracleSession::Begin& begin = [](const std::string&) {});

}  // namespace mixroof
