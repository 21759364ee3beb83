// What tests that compare with the oracle share: where its folder is, and what they say when there is none.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "harness/execute/oracle_file.h"

namespace mixroof {

/// The reason of tests that are skipped: GTEST_SKIP() << kNoOracle.
inline constexpr const char* kNoOracle = "no oracle folder; name one in the environment variable MIXROOF_ORACLE";

/// The oracle folder of this checkout or of the environment; nothing where there is none.
inline std::optional<std::string> oracle_folder() { return find_oracle(MIXROOF_SOURCE_DIR "/../shared/oracle"); }

/// "FOLDER/stem" opened; null where there is no oracle folder. A folder without this file is an error (UsageError).
inline std::unique_ptr<const OracleFile> open_oracle(const std::string& stem) {
  const std::optional<std::string> folder = oracle_folder();
  return folder ? std::make_unique<const OracleFile>(*folder + "/" + stem) : nullptr;
}

}  // namespace mixroof
