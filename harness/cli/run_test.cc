// `mixroof run` as a user starts it, with small budgets: what the document holds, bad input, outputs that cannot be
// written, interrupts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "harness/cli/program_test_support.h"
#include "harness/result/read.h"
#include "harness/result/validate.h"

namespace mixroof {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

namespace fs = std::filesystem;

const fs::path kSamples = fs::path(MIXROOF_SOURCE_DIR) / ".." / "shared" / "samples";
constexpr const char* kSmall = " --seq 32 --tokens-per-update 64 ";

/// A folder of its own that goes with the test.
class Run : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }

  /// gpt2-tiny, two sequences of 32 an update where `options` name no other sequence.
  ProgramResult run(const std::string& options) const {
    const bool has_batch = options.find("--seq") != std::string::npos;
    return run_program(std::string(MIXROOF_PROGRAM) + " run --model gpt2-tiny " + (has_batch ? "" : kSmall) + options);
  }
  /// Exit 2, one line that names what is wrong, and no document.
  std::string refused(const std::string& options, int exit_code = 2) const {
    const ProgramResult result = run(options + " --out " + out.string());
    EXPECT_EQ(result.exit_code, exit_code) << options;
    EXPECT_THAT(result.out, IsEmpty()) << options;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_FALSE(fs::exists(out)) << options;
    return result.err;
  }
  fs::path text_file(const std::string& name, std::size_t bytes) const {
    std::ofstream file(folder / name);
    for (std::size_t i = 0; i < bytes; ++i) file << static_cast<char>('a' + i * i % 7);
    return folder / name;
  }

  const fs::path folder = fs::temp_directory_path() / ("mixroof_run_test_" + std::to_string(getpid()));
  const fs::path out = folder / "result.json";
};

TEST_F(Run, DocumentHoldsEveryPart_AndKeepsItsPromises) {
  const ProgramResult result =
      run("--updates 14 --budget 12s --recipes main,bf16-pure --data " + text_file("text", 4000).string() + " --out " + out.string());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("Whole updates"), HasSubstr("emulated"), HasSubstr(out.string())));
  const Json document = read_document(out);
  for (const DocumentFault& fault : validate_document(document)) ADD_FAILURE() << fault.text();
  EXPECT_EQ(document.at("run").at("status"), "complete");
  EXPECT_GE(document.at("ceilings").size(), 4u);
  EXPECT_FALSE(document.at("tool").at("tuning").empty());

  std::set<std::int64_t> tokens, attempted;
  ASSERT_EQ(document.at("steps").size(), 7u);
  for (const Json& step : document.at("steps")) {
    SCOPED_TRACE(step.at("recipe").get<std::string>());
    EXPECT_EQ(step.at("status"), "ok") << step.at("reason");
    tokens.insert(step.at("clocks").at("effective_tokens").get<std::int64_t>());
    attempted.insert(step.at("clocks").at("updates_attempted").get<std::int64_t>());
    const Json& memory = step.at("memory");
    EXPECT_EQ(memory.at("peak_bytes").at("live_planned"), memory.at("peak_bytes").at("ledger"));
    const double per_param = memory.at("persistent_bytes").at("per_param");
    EXPECT_NEAR(per_param, step.at("recipe") == "bf16-pure" ? 8 : 16, 0.05);
    EXPECT_GT(step.at("traced").at("ops_sum_fraction"), 0.5);
    EXPECT_GT(step.at("kernels_explain_fraction"), 0);
    EXPECT_TRUE(step.at("floor_s").is_number());
    EXPECT_EQ(step.at("phases").size(), 3u);
  }
  EXPECT_EQ(tokens.size(), 1u) << "every recipe consumes the same effective tokens";
  EXPECT_EQ(attempted.size(), 1u);
  const Json& losses = document.at("steps")[0].at("numerics").at("loss");
  EXPECT_EQ(document.at("steps")[0].at("recipe"), "fp32");
  EXPECT_LT(losses.back(), losses.front());

  std::set<std::string> caches;
  for (const Json& kernel : document.at("kernels"))
    if (kernel.at("time_s").is_object()) caches.insert(kernel.at("cache").get<std::string>());
  EXPECT_EQ(caches, (std::set<std::string>{"cold", "hot", "in_step"}));
}

TEST_F(Run, SkippedUpdates_AreCountedAndLeftOutOfTheTime) {
  ASSERT_EQ(run("--updates 8 --budget 60s --parts steps --recipes fp16-master --init-scale 16777216 --out " + out.string()).exit_code, 0);
  const Json document = read_document(out);
  const Json& step = document.at("steps")[0];
  EXPECT_GT(step.at("clocks").at("updates_skipped"), 0);
  EXPECT_EQ(step.at("clocks").at("updates_attempted").get<int>(),
            step.at("clocks").at("updates_applied").get<int>() + step.at("clocks").at("updates_skipped").get<int>());
  EXPECT_EQ(step.at("numerics").at("scale").at("trajectory")[0], 16777216);
  EXPECT_TRUE(step.at("numerics").at("loss_reference").is_array()) << "fp32 runs for comparison although it was not asked for";
  EXPECT_TRUE(step.at("speedup_vs_fp32").is_null());
}

TEST_F(Run, NUM3_EveryRecipeIsJudged_AndDiagnosticOnesShowTheirLoss) {
  const ProgramResult result = run("--updates 6 --budget 60s --parts steps --recipes fp32,fp8-hybrid,bf16-nomaster,fp16-pure --out " + out.string());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("Numerics"), HasSubstr("grad rel L2"), HasSubstr("bf16-nomaster: absorption")));
  const Json document = read_document(out);
  for (const DocumentFault& fault : validate_document(document)) ADD_FAILURE() << fault.text();
  for (const Json& step : document.at("steps")) {
    SCOPED_TRACE(step.at("recipe").get<std::string>());
    const Json& n = step.at("numerics");
    EXPECT_EQ(n.at("verdict") == "ok", !step.at("diagnostic").get<bool>()) << n.at("reason");
    EXPECT_EQ(n.at("verdict") == "ok", n.at("reason").is_null());
    EXPECT_GE(n.at("compared_updates").size(), 1u);
    EXPECT_EQ(n.at("grad_norm_reference").size(), 6u);
    EXPECT_FALSE(n.at("tensors").empty());
    EXPECT_EQ(n.at("saturated_fraction").is_number(), step.at("recipe") == "fp8-hybrid");
    EXPECT_TRUE(n.at("limits").at("degraded").at("grad_rel_l2").is_number());
    const double absorbed = n.at("absorbed_update_fraction"), limit = n.at("limits").at("degraded").at("absorbed_update_fraction");
    EXPECT_EQ(absorbed > limit, step.at("diagnostic").get<bool>());
  }
}

TEST_F(Run, LS2_OverflowAtTheFloor_EndsThatRecipe_AndTheOthersGoOn) {
  const ProgramResult result = run("--updates 6 --budget 60s --parts steps --recipes fp16-master,bf16-master --init-scale 1099511627776 "
                                   "--scale-floor 1099511627776 --scale-ceiling 1099511627776 --out " + out.string());
  EXPECT_EQ(result.exit_code, 1) << result.err;
  const Json document = read_document(out);
  EXPECT_TRUE(validate_document(document).empty());
  const Json &fp16 = document.at("steps")[0], &bf16 = document.at("steps")[1];
  EXPECT_EQ(fp16.at("status"), "failed");
  EXPECT_THAT(fp16.at("reason").get<std::string>(), HasSubstr("floor of the loss scale"));
  EXPECT_EQ(fp16.at("clocks").at("updates_attempted"), 1);
  EXPECT_EQ(bf16.at("status"), "ok");
  EXPECT_EQ(bf16.at("clocks").at("updates_attempted"), 6);
}

TEST_F(Run, StaticLossScale_IsKept) {
  ASSERT_EQ(run("--updates 5 --budget 60s --parts steps --recipes fp16-master --loss-scale 256 --growth-interval 1 --out " + out.string()).exit_code, 0);
  const Json scale = read_document(out).at("steps")[0].at("numerics").at("scale");
  EXPECT_EQ(scale.at("initial"), 256);
  EXPECT_EQ(scale.at("final"), 256);
  EXPECT_EQ(scale.at("growths"), 0);
}

TEST_F(Run, SeveralMicroBatches_CarryFp32Gradients) {
  ASSERT_EQ(run("--micro-batch 1 --updates 5 --budget 60s --parts steps --recipes bf16-master --out " + out.string()).exit_code, 0);
  const Json document = read_document(out);
  const Json& step = document.at("steps")[0];
  EXPECT_EQ(step.at("micro_batches"), 2);
  EXPECT_NEAR(step.at("memory").at("persistent_bytes").at("per_param").get<double>(), 18, 0.05);
}

TEST_F(Run, ParametersThatAreNotFinite_FailTheRecipe_AndAreAFinding) {
  // A learning rate beyond fp32 makes every parameter infinite: the recipes fail with a reason, the document stays valid.
  const ProgramResult result = run("--updates 12 --budget 60s --parts steps --recipes fp32,fp16-pure --lr 1e39 --out " + out.string());
  EXPECT_EQ(result.exit_code, 1) << result.err;
  const Json document = read_document(out);
  EXPECT_TRUE(validate_document(document).empty());
  for (const Json& step : document.at("steps")) {
    EXPECT_EQ(step.at("status"), "failed");
    EXPECT_THAT(step.at("reason").get<std::string>(), HasSubstr("not finite"));
    EXPECT_TRUE(step.at("time_s").is_null());
  }
}

TEST_F(Run, BadInput_IsOneLineAndNothingIsMeasured) {
  EXPECT_THAT(refused("--recipes bf15"), HasSubstr("bf16"));
  EXPECT_THAT(refused("--data " + (folder / "missing").string()), HasSubstr("missing"));
  EXPECT_THAT(refused("--data " + folder.string()), HasSubstr("directory"));
  EXPECT_THAT(refused("--data " + text_file("empty", 0).string()), HasSubstr("empty"));
  EXPECT_THAT(refused("--data " + text_file("short", 20).string()), HasSubstr("65"));  // 64 tokens and the last target
  EXPECT_THAT(refused("--seq 24 --tokens-per-update 64"), HasSubstr("multiple"));
  EXPECT_THAT(refused("--micro-batch 3"), HasSubstr("--micro-batch"));
  EXPECT_THAT(refused("--seq 128 --tokens-per-update 128"), HasSubstr("64"));  // the context
  EXPECT_THAT(refused("--budget 10ms"), HasSubstr("--budget"));
  EXPECT_THAT(refused("--parts kernel"), HasSubstr("kernels"));
  EXPECT_THAT(refused("--schedule cosin"), HasSubstr("cosine"));
  EXPECT_THAT(refused("--loss-scale dynamc"), HasSubstr("dynamic"));
  EXPECT_THAT(refused("--init-scale 0.5"), HasSubstr("--scale-floor 1"));
  EXPECT_THAT(refused("--scale-floor 4 --scale-ceiling 2"), HasSubstr("--scale-ceiling 2"));
  EXPECT_THAT(refused("--growth-interval 0"), HasSubstr("--growth-interval 0"));
  EXPECT_THAT(refused("--device cuda", 3), HasSubstr("cuda"));
}

TEST_F(Run, TOK1_EveryFaultOfATokenFile_HasItsOwnMessage) {
  if (!fs::exists(kSamples / "tokens")) GTEST_SKIP() << "no samples folder";
  std::set<std::string> messages;
  int files = 0;
  for (const auto& entry : fs::directory_iterator(kSamples / "tokens")) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("tok1_") || name.starts_with("tok1_a")) continue;
    std::string message = refused("--data " + entry.path().string());
    EXPECT_THAT(message, HasSubstr(name));
    message.erase(0, message.find(name) + name.size());
    messages.insert(message);
    ++files;
  }
  EXPECT_EQ(static_cast<int>(messages.size()), files);
  EXPECT_EQ(files, 8);
}

TEST_F(Run, ENV2_OutputThatCannotBeWritten_IsFoundBeforeMeasuring) {
  const auto message = [&](const std::string& path) {
    const ProgramResult result = run("--out '" + path + "'");
    EXPECT_EQ(result.exit_code, 2) << path;
    return result.err;
  };
  EXPECT_THAT(message((folder / "nowhere" / "r.json").string()), HasSubstr("nowhere"));
  EXPECT_THAT(message(folder.string()), HasSubstr("directory"));
  EXPECT_THAT(message((folder / std::string(300, 'x')).string()), HasSubstr("long"));
}

TEST_F(Run, ENV2_FullDevice_IsAnErrorAndNeverSaved) {
  const ProgramResult result = run("--updates 4 --budget 2s --parts steps --recipes fp32 --out /dev/full");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("/dev/full"));
  EXPECT_THAT(result.out, testing::Not(HasSubstr("result document")));
}

TEST_F(Run, ENV3_Interrupt_KeepsWhatIsFinished_AndExitsWith130) {
  // Interrupted once the document holds ceilings, however slow the machine is.
  const std::string command = std::string(MIXROOF_PROGRAM) + " run --model gpt2-tiny" + kSmall +
                              "--updates 100000 --budget 300s --recipes fp32,bf16-master --out " + out.string() +
                              " & i=0; until grep -q byte_per_s " + out.string() +
                              " 2>/dev/null || [ $i -ge 600 ]; do i=$((i+1)); sleep 0.1; done; kill -INT $!; wait $!";
  EXPECT_EQ(run_program(command).exit_code, 130);
  const Json document = read_document(out);
  EXPECT_TRUE(validate_document(document).empty());
  EXPECT_EQ(document.at("run").at("status"), "interrupted");
  EXPECT_FALSE(document.at("ceilings").empty());
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) EXPECT_EQ(entry.path(), out) << "a partial file is left";
}

TEST_F(Run, ModelThatDoesNotFit_IsOutOfMemory_WithBytesNeededAndFree) {
  const ProgramResult result = run_program(std::string(MIXROOF_PROGRAM) +
                                           " run --model gpt2-1558m --seq 1024 --tokens-per-update 1048576 --updates 3 --budget 5s "
                                           "--parts steps --recipes fp32 --out " + out.string());
  EXPECT_EQ(result.exit_code, 3) << result.err;
  const Json document = read_document(out);
  const Json& step = document.at("steps")[0];
  EXPECT_EQ(step.at("status"), "out_of_memory");
  EXPECT_THAT(step.at("reason").get<std::string>(), AllOf(HasSubstr("bytes"), HasSubstr("free")));
}

}  // namespace
}  // namespace mixroof
