// The whole check on the project's own folder, and on the shared one where it is found.
#include <gmock/gmock.h>
#include <hwy/targets.h>

#include <set>

#include "harness/execute/oracle_test_support.h"
#include "harness/oracle/oracle_test_folder.h"

namespace mixroof {
namespace {

using testing::HasSubstr;

class Folder : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    folder_ = GetParam() ? oracle_folder().value_or("") : own_oracle();
    if (folder_.empty()) GTEST_SKIP() << kNoOracle;
  }
  OracleRun run(const std::string& group) { return run_oracle(folder_, {group}); }

  std::string folder_;
};

TEST_P(Folder, Formats_AreEqual) {
  const OracleRun of = run("formats");
  expect_no_failure(of);
  EXPECT_GE(of.with(OracleVerdict::pass).size(), 15u);
}

TEST_P(Folder, Scaling_IsEqual) {
  const OracleRun of = run("scaling");
  expect_no_failure(of);
  EXPECT_GE(of.with(OracleVerdict::pass).size(), 12u);
  EXPECT_TRUE(of.with(OracleVerdict::skipped).empty());  // every example has its question
}

TEST_P(Folder, AdamwQuantizationAndKernels_AreWithinTheirLimitsOnEveryTarget) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    for (const char* group : {"adamw", "quantize", "kernels"}) {
      const OracleRun of = run(group);
      expect_no_failure(of);
      EXPECT_GE(of.with(OracleVerdict::pass).size(), 8u);
      // Of two legal policies for a NaN in an FP8 history the product has one.
      for (const OracleRow& row : of.with(OracleVerdict::skipped)) EXPECT_THAT(row.item, HasSubstr("nan_is_ignored"));
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

TEST_P(Folder, WholeUpdates_AreWithinTheirLimitsInEveryRecipe) {
  const OracleRun of = run("gpt");
  expect_no_failure(of);
  std::set<std::string> recipes;
  for (const OracleRow& row : of.with(OracleVerdict::pass)) recipes.insert(row.item.substr(row.item.find(' ') + 1));
  for (const char* recipe : {"double", "fp32", "bf16-master", "fp16-master", "fp8-hybrid", "fp8-current", "fp8-channel",
                             "fp8-block", "mxfp8"})
    EXPECT_TRUE(recipes.contains(recipe)) << recipe;
}

std::string folder_name(const testing::TestParamInfo<bool>& tested) { return tested.param ? "Shared" : "Own"; }

INSTANTIATE_TEST_SUITE_P(Oracle, Folder, testing::Bool(), folder_name);

TEST(OracleCheck, AGroupThatTheFolderLacks_IsAbsentAndNoFailure) {
  const AlteredOracle oracle("kernels");
  const OracleRun run = run_oracle(oracle.folder());
  EXPECT_EQ(run.failures, 0);
  std::set<std::string> absent;
  for (const OracleRow& row : run.with(OracleVerdict::absent)) absent.insert(row.group);
  for (const OracleGroup& group : oracle_groups())
    EXPECT_EQ(absent.contains(std::string(group.name)), group.name != "kernels");
}

TEST(OracleCheck, AFileThatAGroupLacks_IsAbsent) {
  const AlteredOracle oracle("scaling");
  std::filesystem::remove(oracle.path("scaling/clocks.json"));
  const OracleRun run = run_oracle(oracle.folder(), {"scaling"});
  EXPECT_EQ(run.failures, 0);
  ASSERT_EQ(run.with(OracleVerdict::absent).size(), 1u);
  EXPECT_EQ(run.with(OracleVerdict::absent)[0].item, "clocks");
}

TEST(OracleCheck, ChosenRecipes_AreTheOnlyOnesThatRun) {
  const OracleRun run = run_oracle(own_oracle(), {"gpt"}, {&find_recipe("bf16-master")});
  for (const OracleRow& row : run.with(OracleVerdict::pass))
    EXPECT_THAT(row.item, testing::AnyOf(HasSubstr("double"), HasSubstr("bf16-master")));
  EXPECT_FALSE(run.with(OracleVerdict::pass).empty());
}

TEST(OracleCheck, WithoutAYardstick_ARecipeIsSkippedWithTheReason) {
  const AlteredOracle oracle("gpt");
  nlohmann::json manifest = oracle.read("gpt/tiny_llama");
  for (auto& variant : manifest.at("variants")) variant.erase("yardsticks");
  oracle.write("gpt/tiny_llama", manifest);
  const OracleRun run = run_oracle(oracle.folder(), {"gpt"});
  EXPECT_EQ(run.failures, 0);
  int skipped = 0;
  for (const OracleRow& row : run.with(OracleVerdict::skipped))
    skipped += row.item == "tiny_llama/plain bf16-master" && row.detail == "no yardstick bf16_master in this variant";
  EXPECT_EQ(skipped, 1);
}

}  // namespace
}  // namespace mixroof
