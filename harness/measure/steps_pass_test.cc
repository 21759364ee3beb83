#include "harness/measure/steps_pass.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "harness/program/bytes.h"

namespace mixroof {
namespace {

class StepsPass : public testing::Test {
 protected:
  StepsPass() {
    config.model = find_model("gpt2-tiny");
    config.recipes = parse_recipes("fp32,bf16-autocast,bf16-master");
    config.batch = {.micro_batch = 2, .seq = 16, .micro_batches = 1};
    config.updates = 7;
    config.seed = 3;
  }
  std::vector<StepRecord> run(const StepsOptions& options) {
    const TokenData data = TokenData::synthetic(config.model.vocab, config.seed);
    return run_steps(config, data, *backend, options, {}, [](const std::vector<StepRecord>&) {});
  }
  std::int64_t planned(std::string_view recipe) const {
    return plan_bytes(config.lower_for(find_recipe(recipe), backend->target())).arena_bytes;
  }

  RunConfig config;
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
};

TEST_F(StepsPass, EveryRecipe_ConsumesTheSameTokensInTheSameNumberOfAttemptedUpdates) {
  std::set<std::int64_t> tokens, attempted;
  for (const StepRecord& record : run({.budget_s = 60})) {
    EXPECT_EQ(record.status, Status::ok) << record.reason;
    EXPECT_EQ(record.loss.size(), 7u);
    // The traced updates count in the execution's clocks, not in the record's.
    tokens.insert(record.last.tokens_consumed);
    attempted.insert(record.last.attempted);
  }
  EXPECT_EQ(tokens, std::set<std::int64_t>{7 * 32});
  EXPECT_EQ(attempted, std::set<std::int64_t>{7});
}

TEST_F(StepsPass, GroupsThatFitMemory_HaveABaselineOfTheirOwnEach_AndSpeedUpsUseIt) {
  // Room for the baseline and one other recipe.
  const std::vector<StepRecord> records =
      run({.budget_s = 60, .memory_bytes = planned("fp32") + std::max(planned("bf16-autocast"), planned("bf16-master"))});
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[0].recipe->name, "fp32");
  EXPECT_EQ(records[1].recipe->name, "bf16-autocast");
  EXPECT_EQ(records[2].recipe->name, "fp32");
  EXPECT_EQ(records[3].recipe->name, "bf16-master");
  for (const std::size_t group : {0u, 2u}) {
    // The first block is warm-up alone, NaN on both sides; the times of the others are the baseline's very ones.
    const std::vector<double>&own = records[group].block_median_s, &shared = records[group + 1].baseline_block_median_s;
    ASSERT_EQ(own.size(), 4u);
    ASSERT_EQ(shared.size(), own.size());
    EXPECT_TRUE(std::isnan(shared[0]));
    for (std::size_t block = 1; block < own.size(); ++block) EXPECT_EQ(shared[block], own[block]);
  }
  EXPECT_NE(records[1].baseline_block_median_s[1], records[3].baseline_block_median_s[1]) << "the groups ran apart";
}

TEST_F(StepsPass, WithoutTheBaseline_NothingIsPaired) {
  config.recipes = parse_recipes("bf16-master");
  const std::vector<StepRecord> records = run({.budget_s = 60});
  ASSERT_EQ(records.size(), 1u);
  EXPECT_TRUE(records[0].baseline_block_median_s.empty());
}

TEST_F(StepsPass, ABlockOfOtherSize_LosesNoUpdate) {
  for (const StepRecord& record : run({.budget_s = 60, .updates_per_block = 3}))
    EXPECT_EQ(record.warm_up_s.size() + record.applied_s.size() + record.skipped_s.size(), 7u) << record.recipe->name;
}

}  // namespace
}  // namespace mixroof
