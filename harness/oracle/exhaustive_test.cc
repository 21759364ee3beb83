// Every fp32 pattern through every encoder: the scalar functions and each array path of this processor. Two to five
// minutes of processor time, on all cores at once; skipped without the shared folder.
#include <gtest/gtest.h>

#include "harness/execute/oracle_test_support.h"
#include "harness/oracle/check.h"

namespace mixroof {
namespace {

TEST(CodecExhaustive, ScalarFunctionsAndEveryArrayPath_GiveTheChecksumsOfAllInputs) {
  const auto folder = oracle_folder();
  if (!folder) GTEST_SKIP() << kNoOracle;
  int columns = 0;
  check_oracle({.folder = *folder, .groups = {"formats"}}, [&](const OracleRow& row) {
    if (!row.item.starts_with("exhaustive/")) return;
    EXPECT_EQ(row.verdict, OracleVerdict::pass) << row.item << ": " << row.where << row.detail;
    ++columns;
  });
  EXPECT_GT(columns, 0);
}

}  // namespace
}  // namespace mixroof
