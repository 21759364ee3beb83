// Training state as a user saves and loads it: interrupted runs go on bit for bit, killed ones too, and what cannot be
// loaded is refused before anything is measured.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "harness/cli/program_test_support.h"
#include "harness/result/read.h"
#include "harness/result/validate.h"

namespace mixroof {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::vector<std::string> kRecipes = {"fp32", "fp16-master", "bf16-master", "fp8-hybrid"};
constexpr int kUpdates = 12;

class SavedState : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  /// A scale that overflows at first, so that the scaler's state matters; one processor, which needs no waiting for
  /// another.
  std::string command(const std::string& options) const {
    return "cpu=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//'); exec taskset -c $cpu " + std::string(MIXROOF_PROGRAM) +
           " run --model gpt2-tiny --seq 16 --tokens-per-update 32 --parts steps --budget 60s --init-scale 1048576 "
           "--out " +
           out_.string() + " " + options;
  }
  ProgramResult run(const std::string& options) const { return run_program(command(options)); }
  static std::string all_recipes() {
    std::string list;
    for (const std::string& recipe : kRecipes) list += (list.empty() ? "" : ",") + recipe;
    return list;
  }
  Json state(const std::string& name, const std::string& recipe) const {
    std::ifstream stream(folder_ / name / recipe / "state.json");
    return Json::parse(stream);
  }
  /// Exit 2, one line, and no document.
  std::string refused(const std::string& options) const {
    const ProgramResult result = run(options);
    EXPECT_EQ(result.exit_code, 2) << options;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    return result.err;
  }
  void expect_same_training(const std::string& name) const {
    for (const std::string& recipe : kRecipes) {
      const Json expected = state("whole", recipe), got = state(name, recipe);
      EXPECT_EQ(got.at("update"), kUpdates);
      EXPECT_EQ(got.at("history"), expected.at("history")) << recipe;
      EXPECT_EQ(got.at("tensors").at("sha256"), expected.at("tensors").at("sha256")) << recipe;
    }
  }
  /// Two fresh processes may choose other implementations by timing: every training goes on from one first update,
  /// which holds the choices.
  void run_whole() const {
    ASSERT_EQ(run(fmt::format("--updates 1 --recipes {} --save-state {}", all_recipes(), (folder_ / "first").string()))
                  .exit_code,
              0);
    ASSERT_EQ(run(fmt::format("--updates {} --recipes {} --load-state {} --save-state {}", kUpdates, all_recipes(),
                              (folder_ / "first").string(), (folder_ / "whole").string()))
                  .exit_code,
              0);
    EXPECT_GT(state("whole", "fp16-master").at("clocks").at("updates_skipped"), 0) << "the scaler has work";
  }

  const fs::path folder_ = fs::temp_directory_path() / fmt::format("mixroof_saved_{}", getpid());
  const fs::path out_ = folder_ / "result.json";
};

TEST_F(SavedState, StoppedAndResumed_GivesTheSameBits_AndTheDocumentSaysSo) {
  run_whole();
  const std::string in_two = (folder_ / "in_two").string();
  ASSERT_EQ(run(fmt::format("--updates 5 --recipes {} --load-state {} --save-state {}", all_recipes(),
                            (folder_ / "first").string(), in_two))
                .exit_code,
            0);
  const ProgramResult result = run(fmt::format("--updates {} --recipes {} --load-state {} --save-state {}", kUpdates,
                                               all_recipes(), in_two, in_two));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_same_training("in_two");
  const Json document = read_document(out_);
  for (const DocumentFault& fault : validate_document(document)) ADD_FAILURE() << fault.text();
  for (const Json& step : document.at("steps")) {
    EXPECT_EQ(step.at("resumed").at("from_update"), 5);
    EXPECT_TRUE(step.at("resumed").at("conversions").empty());
    EXPECT_EQ(step.at("numerics").at("loss").size(), static_cast<std::size_t>(kUpdates))
        << "of all updates, not of this run's";
    EXPECT_EQ(step.at("clocks").at("updates_attempted"), kUpdates);
    EXPECT_LE(step.at("time_s").at("n").get<int>(), kUpdates - 5);
  }
}

// Killed without warning at a random moment, twenty times; each time the run goes on from what is on the disk.
TEST_F(SavedState, KilledAtRandomMoments_AndResumed_GivesTheSameBits) {
  run_whole();
  int killed = 0;
  for (int seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    const std::string name = "killed";
    const fs::path states = folder_ / name;
    fs::remove_all(states);
    fs::copy(folder_ / "first", states, fs::copy_options::recursive);
    for (int attempt = 0; attempt < 60; ++attempt) {
      bool all_done = true;
      for (const std::string& recipe : kRecipes) all_done = all_done && state(name, recipe).at("update") == kUpdates;
      if (all_done) break;
      const std::string options =
          fmt::format("--updates {} --recipes {} --load-state {} --save-state {} --save-every 1", kUpdates,
                      all_recipes(), states.string(), states.string());
      // The first attempts are cut soon; later ones get longer, so that each seed ends.
      const double most_s = 0.15 + 0.05 * attempt;
      const double delay_s = std::uniform_real_distribution<double>(0.02, most_s)(random);
      const std::string killing =
          fmt::format("( {} ) & p=$!; sleep {:.3f}; kill -9 $p 2>/dev/null; wait $p", command(options), delay_s);
      const int exit_code = run_program(killing).exit_code;
      killed += exit_code == 128 + 9;
      ASSERT_TRUE(exit_code == 128 + 9 || exit_code == 0) << exit_code;
    }
    expect_same_training(name);
  }
  std::printf("killed %d times in 20 trainings\n", killed);
  EXPECT_GE(killed, 20);
}

TEST_F(SavedState, AnInterrupt_SavesTheStateOfItsMoment) {
  const fs::path states = folder_ / "interrupted";
  const std::string options =
      fmt::format("--updates 1000000 --recipes fp32,fp16-master --save-state {}", states.string());
  const std::string interrupting = fmt::format(
      "( {} ) & p=$!; i=0; until grep -q '\"loss\"' {} 2>/dev/null || [ $i -ge 600 ]; do "
      "i=$((i+1)); sleep 0.1; done; kill -INT $p; wait $p",
      command(options), out_.string());
  EXPECT_EQ(run_program(interrupting).exit_code, 130);
  const Json fp32 = state("interrupted", "fp32");
  EXPECT_GT(fp32.at("update"), 0);
  EXPECT_EQ(fp32.at("update"), state("interrupted", "fp16-master").at("update"));
  const int next = fp32.at("update").get<int>() + 3;
  EXPECT_EQ(
      run(fmt::format("--updates {} --recipes fp32,fp16-master --load-state {}", next, states.string())).exit_code, 0);
}

TEST_F(SavedState, OneRecipesState_IsConvertedIntoOthers) {
  const std::string states = (folder_ / "one").string();
  ASSERT_EQ(run("--updates 4 --recipes bf16-master --save-state " + states).exit_code, 0);
  EXPECT_TRUE(read_document(out_).at("steps")[0].at("resumed").is_null());
  EXPECT_THAT(refused("--updates 8 --recipes fp16-pure --load-state " + states),
              testing::AllOf(HasSubstr("fp16-pure"), HasSubstr("bf16-master")));
  ASSERT_EQ(run("--updates 8 --recipes fp32,fp16-pure,mxfp8 --load-state " + states + "/bf16-master").exit_code, 0);
  for (const Json& step : read_document(out_).at("steps")) {
    EXPECT_EQ(step.at("resumed").at("recipe"), "bf16-master");
    EXPECT_EQ(step.at("resumed").at("conversions")[0], "from recipe bf16-master");
    EXPECT_EQ(step.at("numerics").at("loss").size(), 8u);
  }
}

TEST_F(SavedState, WhatCannotGoOn_IsRefusedWithBothValues) {
  const std::string states = (folder_ / "s").string(), load = " --recipes fp32 --load-state " + states;
  ASSERT_EQ(run("--updates 4 --recipes fp32 --save-state " + states).exit_code, 0);
  fs::remove(out_);
  EXPECT_THAT(refused("--updates 4" + load), HasSubstr("give more updates"));
  EXPECT_THAT(refused("--updates 3" + load), testing::AllOf(HasSubstr("--updates 3"), HasSubstr("stands at update 4")));
  EXPECT_THAT(refused("--updates 8 --lr 0.01" + load), testing::AllOf(HasSubstr("--lr 0.0003"), HasSubstr("0.01")));
  EXPECT_THAT(refused("--updates 8 --seed 2" + load), HasSubstr("data sha256"));
  EXPECT_THAT(refused("--updates 8 --schedule cosine" + load), HasSubstr("--schedule"));
  EXPECT_THAT(refused("--updates 8 --recipes fp32 --load-state " + (folder_ / "nowhere").string()),
              HasSubstr("holds no saved training state"));
  EXPECT_THAT(refused("--updates 8 --recipes fp32 --save-every 2"), HasSubstr("needs --save-state"));
  EXPECT_THAT(refused("--updates 8 --recipes fp32 --save-state /proc/mixroof"),
              HasSubstr("cannot write to /proc/mixroof/fp32"));
  EXPECT_THAT(refused("--updates 8 --recipes fp32 --save-state x --save-every -1"), HasSubstr("--save-every -1"));
  std::ofstream(fs::path(states) / "fp32" / "state.json", std::ios::app) << "x";
  EXPECT_THAT(refused("--updates 8" + load), HasSubstr("is no JSON"));
  EXPECT_FALSE(fs::exists(out_)) << "nothing was measured";
}

}  // namespace
}  // namespace mixroof
