// The bench binaries as a user starts them: flags, exit codes, the document, and rates that are work over time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
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
using testing::Not;

constexpr const char* kTiny = " --mixroof_model gpt2-tiny --mixroof_tokens_per_update 32 --mixroof_seq 16";

class Benches : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("mixroof_benches_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string out() const { return (folder_ / "out.json").string(); }

  ProgramResult run(const std::string& arguments) { return run_program(MIXROOF_BIN "/" + arguments); }

  /// Runs with a tiny budget; stdout is Google Benchmark's JSON, the document is checked and returned.
  Json measure(const std::string& arguments, Json& stdout_json) {
    const ProgramResult result =
        run(arguments + " --benchmark_min_time=0.01 --benchmark_format=json --mixroof_out " + out());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    stdout_json = result.json();
    Json document = read_document(out());
    for (const DocumentFault& fault : validate_document(document)) ADD_FAILURE() << fault.text();
    EXPECT_THAT(unknown_reasons(document), IsEmpty());
    EXPECT_EQ(document["run"]["status"], "complete");
    EXPECT_GT(document["run"]["wall_s"], 0);
    EXPECT_TRUE(document["tool"]["version"].is_string());
    EXPECT_EQ(document["device"]["backend"], "cpu");
    EXPECT_FALSE(document["environment"].empty());
    return document;
  }

  /// Wrong usage: exit 2, nothing on stdout, one line on stderr.
  std::string usage_error(const std::string& arguments) {
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_THAT(result.out, IsEmpty()) << arguments;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    return result.err;
  }

  /// Rows whose status is not ok and that do not say why.
  static std::string unknown_reasons(const Json& document) {
    std::string rows;
    for (const char* list : {"kernels", "steps"})
      for (const Json& row : document[list])
        if (row["status"] != "ok" && !row["reason"].is_string()) rows += row.dump() + "\n";
    return rows;
  }

  std::filesystem::path folder_;
};

/// What one repetition did, from a benchmark's rate and its time in ns.
double work_of(const Json& benchmark, const char* counter) {
  return benchmark.at(counter).get<double>() * benchmark.at("real_time").get<double>() * 1e-9;
}

void expect_near(double found, double expected) { EXPECT_NEAR(found / expected, 1, 1e-6) << found << " " << expected; }

TEST_F(Benches, Help_ShowsBothKindsOfFlags) {
  for (const std::string program : {"bench_ceilings", "bench_kernels", "bench_steps"}) {
    const ProgramResult result = run(program + " --help");
    EXPECT_EQ(result.exit_code, 0) << program;
    EXPECT_THAT(result.out, AllOf(HasSubstr("--benchmark_filter"), HasSubstr("--mixroof_out"), HasSubstr("Examples:")));
  }
  EXPECT_THAT(run("bench_steps --help").out, HasSubstr("--mixroof_updates"));
  EXPECT_THAT(run("bench_ceilings --help").out, Not(HasSubstr("--mixroof_model")));
}

TEST_F(Benches, UnknownFlags_AreRefusedWithNearNames) {
  EXPECT_THAT(usage_error("bench_kernels --mixroof_modle gpt2-tiny"), HasSubstr("--mixroof_model"));
  EXPECT_THAT(usage_error("bench_ceilings --mixroof_model gpt2-tiny"), HasSubstr("unknown flag '--mixroof_model'"));
  EXPECT_THAT(usage_error("bench_steps --benchmark_filtre=x"), HasSubstr("'--benchmark_filtre'"));
}

TEST_F(Benches, ValuesThatGoogleBenchmarkRefuses_AreWrongUsage) {
  EXPECT_THAT(usage_error("bench_ceilings --benchmark_format=yaml"), HasSubstr("--benchmark_ flag"));
}

TEST_F(Benches, ValuesThatAreRefused_AreNamedByThisProgramsFlags) {
  EXPECT_THAT(usage_error("bench_steps --mixroof_seq 0"), HasSubstr("--mixroof_seq 0"));
  EXPECT_THAT(usage_error("bench_kernels --mixroof_tokens_per_update 100"),
              HasSubstr("--mixroof_tokens_per_update 100: must be a multiple of --mixroof_seq 128"));
}

TEST_F(Benches, AFilterThatMatchesNothing_IsWrongUsageAndLeavesNoDocument) {
  for (const std::string program : {"bench_ceilings", "bench_kernels", "bench_steps"})
    EXPECT_THAT(usage_error(program + " --benchmark_filter=nosuch --mixroof_out " + out()),
                AllOf(HasSubstr("nosuch"), HasSubstr("--benchmark_list_tests")));
  EXPECT_FALSE(std::filesystem::exists(out()));
}

TEST_F(Benches, AnUnwritableDocument_IsFoundBeforeAnythingIsMeasured) {
  EXPECT_THAT(usage_error("bench_ceilings --mixroof_out /nosuch/out.json"), HasSubstr("/nosuch"));
}

TEST_F(Benches, Listing_MeasuresNothingAndWritesNothing) {
  const ProgramResult result =
      run("bench_steps --benchmark_list_tests --mixroof_recipes fp32,bf16-master --mixroof_out " + out());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("fp32/"), HasSubstr("bf16-master/")));
  EXPECT_FALSE(std::filesystem::exists(out()));
}

TEST_F(Benches, Ceilings_AreWorkOverTime) {
  Json google;
  const Json document = measure("bench_ceilings --benchmark_filter='compute/fp32/|L1/copy'", google);
  EXPECT_TRUE(document["workload"].is_null());
  ASSERT_FALSE(document["ceilings"].empty());
  std::set<std::string> ids;
  for (const Json& ceiling : document["ceilings"]) {
    ids.insert(ceiling["id"]);
    // Google Benchmark's rate is all work over all time: the harmonic mean of the samples' rates.
    double seconds_per_work = 0;
    for (const double rate : ceiling["measured"]["samples"]) seconds_per_work += 1 / rate;
    const double rate = ceiling["measured"]["n"].get<double>() / seconds_per_work;
    bool found = false;
    for (const Json& benchmark : google["benchmarks"])
      if (benchmark["name"] == ceiling["id"].get<std::string>() + "/manual_time") {
        found = true;
        expect_near(benchmark[ceiling["unit"].get<std::string>()], rate);
      }
    EXPECT_TRUE(found) << ceiling["id"];
  }
  EXPECT_TRUE(ids.contains("compute/fp32"));
}

TEST_F(Benches, CandidatesOfOneCeiling_CompeteAndTheDocumentKeepsTheFastest) {
  Json google;
  const Json document = measure("bench_ceilings --benchmark_filter=DRAM/write", google);
  EXPECT_EQ(google["benchmarks"].size(), 2u);  // plain stores and stores past the cache
  EXPECT_EQ(document["ceilings"].size(), 1u);
}

TEST_F(Benches, Kernels_ColdAndHotRatesAreWorkOverTime) {
  Json google;
  const Json document = measure(
      "bench_kernels --mixroof_recipes fp32,bf16-master --benchmark_filter='matmul/forward.*n=192|adamw.*count=4096'" +
          std::string(kTiny),
      google);
  EXPECT_EQ(document["workload"]["model"]["name"], "gpt2-tiny");
  std::set<std::string> caches, recipes;
  for (const Json& row : document["kernels"]) {
    caches.insert(row["cache"]);
    recipes.insert(row["recipe"]);
    const std::string id = row["id"];  // recipe, then the benchmark's name
    const std::string name = id.substr(id.find('/') + 1) + "/";
    const bool is_matmul = row["kernel"] == "matmul";
    double work = 0;
    if (is_matmul)
      for (const auto& [format, flops] : row["flops"]["useful"].items()) work += flops.get<double>();
    else
      work = row["bytes"]["read"].get<double>() + row["bytes"]["written"].get<double>();
    bool found = false;
    for (const Json& benchmark : google["benchmarks"])
      if (benchmark["name"].get<std::string>().starts_with(name)) {
        found = true;
        expect_near(work_of(benchmark, is_matmul ? "flop_per_s" : "byte_per_s"), work);
      }
    EXPECT_TRUE(found) << name;
    EXPECT_GE(row["time_s"]["n"], 1);
  }
  EXPECT_EQ(caches, (std::set<std::string>{"cold", "hot"}));
  EXPECT_EQ(recipes, (std::set<std::string>{"fp32", "bf16-master"}));
}

TEST_F(Benches, Steps_OfEveryRecipeAttemptTheSameUpdates) {
  Json google;
  const Json document =
      measure("bench_steps --mixroof_recipes bf16-master,fp32 --mixroof_updates 3" + std::string(kTiny), google);
  EXPECT_EQ(document["workload"]["updates"], 5);  // two to settle, three timed
  ASSERT_EQ(document["steps"].size(), 2u);
  for (const Json& step : document["steps"]) {
    SCOPED_TRACE(step["recipe"]);
    EXPECT_EQ(step["status"], "ok");
    EXPECT_EQ(step["effective_tokens_per_update"], 32);
    EXPECT_EQ(step["clocks"]["updates_attempted"], 5);
    EXPECT_EQ(step["time_s"]["n"], 3);
    EXPECT_EQ(step["numerics"]["loss"].size(), 5u);
    EXPECT_EQ(step["numerics"]["loss_reference"], document["steps"][1]["numerics"]["loss"]);  // also before fp32 ran
  }
  ASSERT_EQ(google["benchmarks"].size(), 2u);
  for (const Json& benchmark : google["benchmarks"]) expect_near(work_of(benchmark, "tokens_per_s"), 32);
}

TEST_F(Benches, StepsThatDoNotFitMemory_AreRowsWithAReasonAndTheNextIsTried) {
  // Activations of 2^20 positions in one micro-batch: 400 layers of width 64, about 20 values of 4 bytes for each, are
  // 2 TB; in 16 bits half of it.
  const std::string config = (folder_ / "config.json").string();
  std::ofstream(config) << R"({"model_type": "gpt2", "n_layer": 400, "n_embd": 64, "n_head": 2, "n_positions": 1024,
                              "vocab_size": 256})";
  const ProgramResult result =
      run("bench_steps --mixroof_recipes fp32,bf16-master --mixroof_seq 1024"
          " --mixroof_tokens_per_update 1048576 --mixroof_model " +
          config + " --mixroof_out " + out());
  EXPECT_EQ(result.exit_code, 3) << result.err;
  const Json document = read_document(out());
  EXPECT_THAT(validate_document(document), IsEmpty());
  ASSERT_EQ(document["steps"].size(), 2u);
  for (const Json& step : document["steps"]) {
    EXPECT_EQ(step["status"], "out_of_memory");
    EXPECT_THAT(step["reason"].get<std::string>(), HasSubstr("bytes"));
    EXPECT_TRUE(step["time_s"].is_null());
  }
}

}  // namespace
}  // namespace mixroof
