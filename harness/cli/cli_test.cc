// The program itself, as a user starts it: exit codes, messages, what it prints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "harness/cli/program_test_support.h"

namespace mixroof {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

using Result = ProgramResult;

/// `arguments` as a shell reads them, redirections included; `environment` stands before the program.
Result run(const std::string& arguments, const std::string& environment = "") {
  return run_program(environment + " " MIXROOF_PROGRAM " " + arguments);
}

/// Wrong usage: exit 2, nothing on stdout, one line on stderr.
std::string usage_error(const std::string& arguments) {
  const Result result = run(arguments);
  EXPECT_EQ(result.exit_code, 2) << arguments;
  EXPECT_THAT(result.out, IsEmpty()) << arguments;
  EXPECT_THAT(result.err, StartsWith("mixroof: ")) << arguments;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  return result.err;
}

// ---- help, version, misspelt words

TEST(Cli, Version_IsOneLine) {
  const Result result = run("--version");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, StartsWith("mixroof "));
}

TEST(Cli, Help_NamesEverySubcommandAndEachHasAnExample) {
  const Result help = run("--help");
  EXPECT_EQ(help.exit_code, 0);
  for (const std::string name : {"check", "plan", "explain", "doctor", "list", "validate"}) {
    EXPECT_THAT(help.out, HasSubstr(name));
    const Result of_subcommand = run(name + " --help");
    EXPECT_EQ(of_subcommand.exit_code, 0) << name;
    EXPECT_THAT(of_subcommand.out, AllOf(HasSubstr("Examples:"), HasSubstr("mixroof " + name)));
  }
}

TEST(Cli, ENV4_MisspeltWords_ExitWith2AndNearNames) {
  EXPECT_THAT(usage_error("chek"), HasSubstr("check"));
  EXPECT_THAT(usage_error("check --kernle norm"), HasSubstr("--kernel"));
  EXPECT_THAT(usage_error("plan --modle gpt2-124m"),
              AllOf(HasSubstr("unknown option '--modle'"), HasSubstr("--model")));
  EXPECT_THAT(usage_error("check --kernel matmull"), AllOf(HasSubstr("matmull"), HasSubstr("matmul,")));
  EXPECT_THAT(usage_error("check --recipe bf15"), HasSubstr("bf16"));
  EXPECT_THAT(usage_error("list modells"), HasSubstr("models"));
  EXPECT_THAT(usage_error("list models --format jsn"), HasSubstr("json"));
  EXPECT_THAT(usage_error("explain format"), HasSubstr("formats"));
  EXPECT_THAT(usage_error("plan --model gpt3"), HasSubstr("gpt2"));
  EXPECT_THAT(usage_error("check --device gpu"), HasSubstr("cpu"));
}

TEST(Cli, WrongUsage_ExitsWith2AndSaysWhatIsMissing) {
  EXPECT_THAT(usage_error(""), HasSubstr("no subcommand"));
  EXPECT_THAT(usage_error("plan"), HasSubstr("--model"));
  EXPECT_THAT(usage_error("validate"), HasSubstr("files"));
  EXPECT_THAT(usage_error("list models again"), HasSubstr("'again'"));
  EXPECT_THAT(usage_error("plan --model gpt2-tiny --seq abc"), AllOf(HasSubstr("--seq"), HasSubstr("abc")));
}

// ---- what is printed

TEST(Cli, List_PrintsTextMarkdownAndJson) {
  for (const std::string what : {"kernels", "recipes", "models", "hardware", "ceilings"}) {
    const Result text = run("list " + what), markdown = run("list " + what + " --format markdown"),
                 json = run("list " + what + " --format json");
    EXPECT_EQ(text.exit_code, 0) << text.err;
    EXPECT_THAT(markdown.out, StartsWith("| "));
    EXPECT_THAT(json.json().at(what).size(), testing::Gt(0u)) << what;
  }
  EXPECT_THAT(run("list recipes").out, AllOf(HasSubstr("fp32"), HasSubstr("bf16-master"), HasSubstr("diagnostic")));
}

TEST(Cli, List_ExactParametersOfGpt2) {
  for (const Json& model : run("list models --format json").json().at("models"))
    if (model.at("name") == "gpt2-124m") {
      EXPECT_EQ(model.at("parameters"), 124439808);
    }
}

TEST(Cli, PLN2_ListHardware_PromisedPeaksAreDense) {
  for (const Json& row : run("list hardware --format json").json().at("hardware"))
    if (row.at("id") == "h100_sxm_80gb") {
      EXPECT_NEAR(row.at("peak_dense_flop_per_s").at("bf16_tensor").get<double>(), 989e12, 1e12);
    }
}

TEST(Cli, ANarrowTerminal_KeepsEveryLineWithinItsWidth) {
  std::istringstream lines(run("list recipes", "COLUMNS=80").out);
  std::string line;
  std::getline(lines, line);
  EXPECT_LE(line.size(), 80u);
}

TEST(Cli, ExplainHelp_NamesEveryTopicWithOneLine) {
  const Result help = run("explain --help");
  EXPECT_EQ(help.exit_code, 0);
  for (const std::string topic : {"formats", "absorption", "accumulation", "scaling", "clipping", "denominators", "fp8"}) {
    EXPECT_THAT(help.out, ContainsRegex("\n  " + topic + " +[a-z]"));
    const Result page = run("explain " + topic);
    EXPECT_EQ(page.exit_code, 0) << page.err;
    EXPECT_THAT(page.out, HasSubstr("\nRule: ")) << topic;
  }
}

TEST(Cli, NUM1_ExplainFormats_SaturatesAndKeepsNan) {
  const Result result = run("explain formats");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(ContainsRegex("\n0x7F, 0xFF +nan\n"), ContainsRegex("\nlargest +448\n"),
                                ContainsRegex("\nsmallest positive +2\\^-9\n"), HasSubstr("Rule:")));
  // Of each value the column of fp8_e4m3, the last but one.
  const auto e4m3 = [&](const std::string& value) {
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with(value + " ")) {
        std::istringstream words(line.substr(value.size()));
        std::vector<std::string> cells{std::istream_iterator<std::string>(words), {}};
        return cells.size() < 2 ? "" : cells[cells.size() - 2];
      }
    return std::string();
  };
  EXPECT_EQ(e4m3("447"), "448");
  EXPECT_EQ(e4m3("464"), "448");
  EXPECT_EQ(e4m3("465"), "448");
  EXPECT_EQ(e4m3("-1000"), "-448");
  EXPECT_EQ(e4m3("infinity"), "448");
  EXPECT_EQ(e4m3("NaN"), "nan");
  EXPECT_EQ(e4m3("2^-10"), "0");
  EXPECT_EQ(e4m3("2^-10 * 1.0001"), "2^-9");
  EXPECT_EQ(e4m3("1.5 * 2^-9"), "2^-8");
}

TEST(Cli, NUM2_ExplainFormats_Bf16RoundsAndKeepsNanPayloads) {
  EXPECT_THAT(run("explain formats").out,
              AllOf(HasSubstr("0x3E8A"), HasSubstr("0.26953125"), HasSubstr("0.267578125")));
}

TEST(Cli, Doctor_TellsCoresBackendsAndRemedies) {
  const Result text = run("doctor");
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("instruction paths"), HasSubstr("by affinity"), HasSubstr("cuda"),
                              HasSubstr("OpenBLAS")));
  const Json json = run("doctor --format json").json();
  EXPECT_GE(json.at("host").at("cores_used").get<int>(), 1);
  EXPECT_EQ(json.at("backends")[0].at("answer"), "yes");
  for (const Json& row : json.at("backends"))
    if (row.at("answer") == "no") {
      EXPECT_THAT(row.at("detail").get<std::string>(), Not(IsEmpty()));
    }
}

TEST(Cli, ENV1_Doctor_CountsTheCoresOfItsAffinity) {
  EXPECT_EQ(run("doctor --format json", "taskset -c 0").json().at("host").at("cores_affinity"), 1);
}

// ---- check

TEST(Cli, Check_OneLinePerKernelAndRecipeAndATotal) {
  const Result result = run("check --kernel norm --recipe fp32,bf16-master --seed 3");
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("norm"), HasSubstr("worst ratio"), HasSubstr(" passed, 0 failed"), HasSubstr("seed 3")));
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 3);
}

TEST(Cli, Check_TakesOneProblemInTheFormOfReproLines) {
  const Json json =
      run("check --kernel norm --recipe bf16-master --problem forward,rows=3,width=769 --format json").json();
  ASSERT_EQ(json.at("results").size(), 1u);
  EXPECT_GT(json.at("results")[0].at("elements").get<int>(), 3 * 769);
  EXPECT_EQ(json.at("failed"), 0);
}

TEST(Cli, Check_WrongProblems_AreUsageErrors) {
  EXPECT_THAT(usage_error("check --problem rows=3"), HasSubstr("--kernel"));
  EXPECT_THAT(usage_error("check --kernel norm --problem forward,rows"), HasSubstr("'rows'"));
  EXPECT_THAT(usage_error("check --kernel norm --recipe fp32 --problem forward,rows=3"), HasSubstr("width"));
}

TEST(Cli, ENV4_ACheckThatMatchesNothing_ExitsWith2) {
  EXPECT_THAT(usage_error("check --kernel quantize --recipe fp32"), HasSubstr("nothing was checked"));
}

TEST(Cli, Check_WithoutTheDevice_ExitsWith3AndTheReason) {
  const Result result = run("check --kernel norm --device cuda");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, StartsWith("mixroof: no_device: cuda"));
}

// ---- plan

TEST(Cli, Plan_CountsThePersistentBytesOfTheRecipeTable) {
  const Json json =
      run("plan --model gpt2-124m --recipes fp32,bf16-master --seq 128 --memory 24GiB --format json").json();
  EXPECT_EQ(json.at("parameters"), 124439808);
  for (const Json& row : json.at("recipes")) {
    std::int64_t states = 0;  // 16 bytes per parameter in both recipes; scaling state comes on top
    for (const char* tensor_class : {"param", "master", "grad", "moment1", "moment2"})
      states += row.at("persistent_bytes").value(tensor_class, std::int64_t{0});
    EXPECT_EQ(states, std::int64_t{16} * 124439808) << row.at("recipe");
    EXPECT_GE(row.at("arena_planned_bytes").get<std::int64_t>(), row.at("live_planned_bytes").get<std::int64_t>());
    EXPECT_GT(row.at("largest_micro_batch").get<std::int64_t>(), 0);
  }
}

TEST(Cli, Plan_MemoryOfADeviceByName) {
  const Json json = run("plan --model gpt2-tiny --recipes fp32 --memory h100_sxm_80gb --format json").json();
  EXPECT_GT(json.at("memory_bytes").get<std::int64_t>(), 79'000'000'000);
  EXPECT_THAT(usage_error("plan --model gpt2-tiny --memory nonesuch"), HasSubstr("nonesuch"));
  EXPECT_THAT(usage_error("plan --model gpt2-tiny --memory 24G"), HasSubstr("24GiB"));
}

TEST(Cli, Plan_TooLittleMemory_SaysNone) {
  EXPECT_THAT(run("plan --model gpt2-tiny --recipes fp32 --memory 1kB").out, HasSubstr("none"));
}

TEST(Cli, Plan_Dump_PrintsOneProgram) {
  EXPECT_THAT(run("plan --model gpt2-tiny --recipes bf16-master --dump").out,
              StartsWith("program gpt2-tiny bf16-master"));
  EXPECT_THAT(usage_error("plan --model gpt2-tiny --recipes fp32,bf16-master --dump"), HasSubstr("names 2"));
}

TEST(Cli, Plan_ASequenceBeyondTheContext_IsAUsageError) {
  EXPECT_THAT(usage_error("plan --model gpt2-tiny --seq 4096"), HasSubstr("4096"));
}

TEST(Cli, MEM1_Plan_CountsBeyond64Bits_AreOutOfMemory) {
  const Result result = run("plan --model gpt2-124m --recipes fp32 --micro-batch 4000000000000000");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, StartsWith("mixroof: out_of_memory: "));
}

// ---- validate

class ValidateFile : public testing::Test {
 protected:
  void SetUp() override {
    file_ = std::filesystem::temp_directory_path() / ("mixroof_cli_validate_" + std::to_string(getpid()) + ".json");
  }
  void TearDown() override { std::filesystem::remove(file_); }
  Result validate(const std::string& text) const {
    std::ofstream(file_) << text;
    return run("validate " + file_.string());
  }
  std::filesystem::path file_;
};

TEST_F(ValidateFile, WhatIsNoResult_IsAFinding) {
  for (const std::string text : {"", "{", "[]", "{\"a\": NaN}", "{\"schema\": 1}", "{\"schema\": null}", "{}"}) {
    const Result result = validate(text);
    EXPECT_EQ(result.exit_code, 1) << text;
    EXPECT_THAT(result.out, HasSubstr(file_.string())) << text;
  }
}

TEST_F(ValidateFile, JSN4_ANewerMajorVersion_IsAFindingThatNamesBoth) {
  const Result result = validate("{\"schema\": \"mixroof/result/2.0\"}");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("2.0"), HasSubstr("1.0"), HasSubstr(file_.string())));
}

TEST_F(ValidateFile, AMissingFile_IsWrongInput) {
  EXPECT_EQ(run("validate /nonexistent/result.json").exit_code, 2);
  EXPECT_EQ(run("validate /").exit_code, 2);
}

// ---- stdout that goes away, locales

TEST(Cli, AFullDisk_IsAnErrorWithTheSystemsReason) {
  const Result result = run("list models >/dev/full");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("No space left on device"));
}

TEST(Cli, AClosedStdout_IsAnError) {
  const Result result = run("list models >&-");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("stdout cannot be written"));
}

TEST(Cli, ENV3_AReaderThatGoesAway_EndsTheWorkQuietlyWith130) {
  const auto status = std::filesystem::temp_directory_path() / ("mixroof_cli_status_" + std::to_string(getpid()));
  const Result result = run("check --kernel norm; echo $? >" + status.string() + "; } | true", "{");
  EXPECT_THAT(result.err, IsEmpty());
  int code = 0;
  std::ifstream(status) >> code;
  EXPECT_EQ(code, 130);
  std::filesystem::remove(status);
}

TEST(Cli, JSN3_ALocaleWithADecimalComma_ChangesNothing) {
  EXPECT_EQ(run("list hardware", "LC_ALL=de_DE.UTF-8").out, run("list hardware", "LC_ALL=C").out);
}

}  // namespace
}  // namespace mixroof
