// What tests of the oracle's check share: the project's own folder, altered copies of it, and rows by name.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <unistd.h>
#include <vector>

#include "harness/oracle/check.h"

namespace mixroof {

inline std::string own_oracle() { return MIXROOF_SOURCE_DIR "/harness/oracle/testdata"; }

/// One group of the project's own folder in a temporary place, to be altered.
class AlteredOracle {
 public:
  explicit AlteredOracle(const std::string& group) {
    static int made = 0;
    folder_ = std::filesystem::temp_directory_path() /
              ("mixroof_oracle_" + std::to_string(getpid()) + "_" + std::to_string(made++));
    std::filesystem::create_directories(folder_);
    if (!group.empty())
      std::filesystem::copy(own_oracle() + "/" + group, folder_ / group, std::filesystem::copy_options::recursive);
  }
  ~AlteredOracle() { std::filesystem::remove_all(folder_); }
  AlteredOracle(const AlteredOracle&) = delete;
  AlteredOracle& operator=(const AlteredOracle&) = delete;

  std::string folder() const { return folder_.string(); }
  std::filesystem::path path(const std::string& file) const { return folder_ / file; }

  nlohmann::json read(const std::string& stem) const {
    std::ifstream file(path(stem + ".json"));
    return nlohmann::json::parse(file);
  }
  void write(const std::string& stem, const nlohmann::json& manifest) const {
    std::filesystem::create_directories(path(stem).parent_path());
    std::ofstream(path(stem + ".json")) << manifest.dump();
  }
  /// Replaces the value at a JSON pointer ("/traces/0/scale/3").
  void set(const std::string& stem, const std::string& pointer, const nlohmann::json& value) const {
    nlohmann::json manifest = read(stem);
    manifest.at(nlohmann::json::json_pointer(pointer)) = value;
    write(stem, manifest);
  }
  /// Changes a bit of the most significant byte but `from_top` of one element of an array.
  void change(const std::string& stem, const std::string& array, std::int64_t index, int from_top = 0) const {
    const nlohmann::json entry = read(stem).at("arrays").at(array);
    std::int64_t count = 1;
    for (const auto& size : entry.at("shape")) count *= size.get<std::int64_t>();
    const std::int64_t width = entry.at("bytes").get<std::int64_t>() / count;
    const std::int64_t at = entry.at("offset").get<std::int64_t>() + (index + 1) * width - 1 - from_top;
    std::fstream file(path(stem + ".bin"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const auto byte = static_cast<char>(file.get() ^ 0x04);
    file.seekp(at);
    file.put(byte);
    ASSERT_TRUE(file.good());
  }

 private:
  std::filesystem::path folder_;
};

struct OracleRun {
  std::vector<OracleRow> rows;
  int failures = 0;

  std::vector<OracleRow> with(OracleVerdict verdict) const {
    std::vector<OracleRow> chosen;
    for (const OracleRow& row : rows)
      if (row.verdict == verdict) chosen.push_back(row);
    return chosen;
  }
};

/// All checks but those over all 2^32 inputs, on one thread.
inline OracleRun run_oracle(const std::string& folder, const std::vector<std::string>& groups = {},
                            const std::vector<const Recipe*>& recipes = {}) {
  OracleRun run;
  run.failures = check_oracle(
      {.folder = folder, .groups = groups, .recipes = recipes, .device = "cpu", .threads = 1, .exhaustive = false},
      [&](const OracleRow& row) { run.rows.push_back(row); });
  return run;
}

inline void expect_no_failure(const OracleRun& run) {
  EXPECT_EQ(run.failures, 0);
  for (const OracleRow& row : run.with(OracleVerdict::fail))
    ADD_FAILURE() << row.group << "/" << row.item << ": " << row.where;
}

}  // namespace mixroof
