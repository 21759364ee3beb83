// Training state in a whole steps pass: recipes that stand at different updates, a baseline that several groups share,
// choices made by timing.
#include "harness/measure/run_states.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "harness/program/bytes.h"

namespace mixroof {
namespace {

namespace fs = std::filesystem;

class States : public testing::Test {
 protected:
  States() {
    config_.model = find_model("gpt2-tiny");
    config_.recipes = parse_recipes("fp32,bf16-autocast,bf16-master");
    config_.batch = {.micro_batch = 2, .seq = 16, .micro_batches = 1};
    config_.updates = 7;
    config_.seed = 3;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<StepRecord> run(bool load, bool save, std::int64_t memory_bytes = 0) {
    config_.load_state = load ? folder_.string() : "";
    config_.save_state = save ? folder_.string() : "";
    RunStates states(config_, data_);
    states.replay_tuning(backend_->tuning());
    return run_steps(config_, data_, *backend_, {.budget_s = 600, .memory_bytes = memory_bytes, .states = &states}, {},
                     [](const std::vector<StepRecord>&) {});
  }

  RunConfig config_;
  const std::unique_ptr<Backend> backend_ = make_cpu_backend(1);
  const TokenData data_ = TokenData::synthetic(256, 3);
  const fs::path folder_ = fs::temp_directory_path() / fmt::format("mixroof_run_states_{}", getpid());
};

TEST_F(States, Laggards_CatchUpUntimed_AndAllEndWhereTheUninterruptedRunEnds) {
  const std::vector<StepRecord> whole = run(false, false);
  config_.updates = 2;
  run(false, true);
  config_.updates = 5;
  config_.recipes = parse_recipes("bf16-master");
  run(true, true);
  config_.updates = 9;
  config_.recipes = parse_recipes("fp32,bf16-autocast,bf16-master");
  const std::vector<StepRecord> resumed = run(true, true);
  ASSERT_EQ(resumed.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    SCOPED_TRACE(resumed[i].recipe->name);
    EXPECT_EQ(std::vector<double>(resumed[i].loss.begin(), resumed[i].loss.begin() + 7), whole[i].loss);
    EXPECT_EQ(std::vector<double>(resumed[i].grad_norm.begin(), resumed[i].grad_norm.begin() + 7), whole[i].grad_norm);
    ASSERT_TRUE(resumed[i].resumed);
    EXPECT_EQ(resumed[i].resumed->from_update, resumed[i].recipe->name == "bf16-master" ? 5 : 2);
    EXPECT_EQ(resumed[i].warm_up_s.size() + resumed[i].applied_s.size(), 4u) << "the updates after the foremost state";
    EXPECT_EQ(resumed[i].last.attempted, 9);
  }
}

TEST_F(States, ABaselineOfSeveralGroups_GoesOnFromTheSameStateInEach) {
  config_.updates = 3;
  run(false, true);
  config_.updates = 7;
  const auto planned = [&](const char* recipe) {
    return plan_bytes(config_.lower_for(find_recipe(recipe), backend_->target())).arena_bytes;
  };
  // Room for the baseline and one other recipe. The first group replaces the baseline's state on the disk.
  const std::vector<StepRecord> records =
      run(true, true, planned("fp32") + std::max(planned("bf16-autocast"), planned("bf16-master")));
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[0].recipe, records[2].recipe);
  EXPECT_EQ(records[2].resumed->from_update, 3);
  EXPECT_EQ(records[0].loss, records[2].loss);
  EXPECT_EQ(load_training_state(folder_ / "fp32").update, 7);
  // One tensor file a recipe is left: the one that was loaded is gone.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "fp32"), fs::directory_iterator()), 2);
}

// The group of the foremost state comes last, and the budget would end the first one early.
TEST_F(States, GroupsWithStatesAtDifferentUpdates_AllEndTogether) {
  config_.updates = 2;
  run(false, true);
  config_.recipes = parse_recipes("bf16-master");
  config_.updates = 20;
  run(true, true);
  config_.recipes = parse_recipes("fp32,bf16-autocast,bf16-master");
  config_.updates = 40;
  config_.load_state = folder_.string();
  const auto planned = [&](const char* recipe) {
    return plan_bytes(config_.lower_for(find_recipe(recipe), backend_->target())).arena_bytes;
  };
  const std::int64_t room = planned("fp32") + std::max(planned("bf16-autocast"), planned("bf16-master"));
  RunStates states(config_, data_);
  const std::vector<StepRecord> records =
      run_steps(config_, data_, *backend_, {.budget_s = 1e-6, .memory_bytes = room, .states = &states}, {},
                [](const std::vector<StepRecord>&) {});
  ASSERT_EQ(records.size(), 4u);
  for (const StepRecord& record : records) {
    EXPECT_EQ(record.last.attempted, records.front().last.attempted) << record.recipe->name;
    EXPECT_GT(record.last.attempted, 20);
    EXPECT_LT(record.last.attempted, 40) << "the budget ended it";
  }
}

TEST_F(States, WhatAKilledRunLeft_IsRemoved_AlsoOfAProcessWithThisOnesId) {
  config_.save_state = folder_.string();
  const fs::path fp32 = folder_ / "fp32";
  fs::create_directories(fp32);
  const std::string live = fmt::format(".mixroof-{}-0.tmp", getppid());
  // Processes have ids up to 2^22.
  for (const std::string& name :
       {fmt::format(".mixroof-{}-100000.tmp", getpid()), std::string(".mixroof-2000000000-1.tmp"), live,
        std::string(".mixroof-x-1.tmp"), std::string("notes.tmp")})
    std::ofstream(fp32 / name) << "x";
  const RunStates states(config_, data_);
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(fp32)) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{live, ".mixroof-x-1.tmp", "notes.tmp"}));
}

// Equal names, counts and shapes of parameters, and yet another function.
TEST_F(States, AModelOfTheSameParametersButOtherHeadsOrEps_IsRefused) {
  config_.recipes = parse_recipes("fp32");
  config_.updates = 2;
  run(false, true);
  config_.updates = 3;
  config_.load_state = folder_.string();
  const auto refusal = [&] {
    try {
      RunStates(config_, data_);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(), "");
  const Model trained = config_.model;
  config_.model.heads = config_.model.kv_heads = trained.heads / 2;
  config_.model.head_dim = 2 * trained.head_dim;
  EXPECT_NE(refusal().find("model shape"), std::string::npos) << refusal();
  config_.model = trained;
  config_.model.norm_eps = 0.1;
  EXPECT_NE(refusal().find("eps 0.1"), std::string::npos) << refusal();
}

TEST_F(States, ChoicesMadeByTiming_AreReplayed) {
  config_.recipes = parse_recipes("fp32");
  config_.updates = 2;
  run(false, true);
  const auto made = backend_->tuning().choices();
  ASSERT_FALSE(made.empty());
  const std::unique_ptr<Backend> fresh = make_cpu_backend(1);
  config_.updates = 3;
  config_.load_state = folder_.string();
  RunStates(config_, data_).replay_tuning(fresh->tuning());
  for (const auto& [problem, choice] : made)
    EXPECT_EQ(fresh->tuning().find(problem).value_or(TuningChoice{}).implementation, choice.implementation);
}

}  // namespace
}  // namespace mixroof
