// `mixroof check --oracle` as a user starts it: exit codes, messages, what it prints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "harness/cli/program_test_support.h"

namespace mixroof {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr const char* kOwn = MIXROOF_SOURCE_DIR "/harness/oracle/testdata";

ProgramResult check(const std::string& folder, const std::string& options = "") {
  return run_program(MIXROOF_PROGRAM " check --oracle " + folder + " " + options);
}

/// A copy of the folder's scaling and adamw groups.
class CheckOracle : public testing::Test {
 protected:
  CheckOracle() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    for (const char* group : {"scaling", "adamw"})
      std::filesystem::copy(std::string(kOwn) + "/" + group, folder_ / group, std::filesystem::copy_options::recursive);
  }
  ~CheckOracle() override { std::filesystem::remove_all(folder_); }

  void replace(const std::string& file, const std::string& pointer, const Json& value) const {
    std::ifstream in(folder_ / file);
    Json manifest = Json::parse(in);
    manifest.at(Json::json_pointer(pointer)) = value;
    std::ofstream(folder_ / file) << manifest.dump();
  }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("mixroof_check_oracle_" + std::to_string(getpid()));
};

TEST_F(CheckOracle, AGoodFolder_Exits0_AndListsAbsentGroups) {
  const ProgramResult result = check(folder_.string());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("pass"), HasSubstr("scaling/traces/odd_factors"),
                                HasSubstr("adamw/vector double"), HasSubstr(" 0 failed"), HasSubstr("absent  gpt")));
}

TEST_F(CheckOracle, OneWrongValue_Exits1_AndItsPlaceIsPrinted) {
  replace("scaling/traces.json", "/traces/1/scale/20", 99.0);
  const ProgramResult result = check(folder_.string());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("FAIL"), HasSubstr("scale[20]"), HasSubstr(" 1 failed")));
  EXPECT_THAT(result.err, HasSubstr("FAIL scaling/traces/odd_factors: scale[20]"));
}

TEST_F(CheckOracle, MalformedFilesAndNoFolders_Exit2_WithFileAndKey) {
  const auto message = [](const ProgramResult& result) {
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.out, IsEmpty());
    EXPECT_THAT(result.err, StartsWith("mixroof: "));
    return result.err;
  };
  replace("adamw/adamw.json", "/cases/1/eps", nullptr);
  EXPECT_THAT(message(check(folder_.string())), AllOf(HasSubstr("adamw/adamw.json"), HasSubstr("cases[1].eps")));
  EXPECT_THAT(message(check("/nowhere")), HasSubstr("/nowhere"));
  std::filesystem::remove_all(folder_ / "adamw");
  std::filesystem::remove_all(folder_ / "scaling");
  EXPECT_THAT(message(check(folder_.string())), HasSubstr("nothing to check"));
  EXPECT_THAT(message(check(kOwn, "--groups kernel")), HasSubstr("kernels"));
  EXPECT_THAT(message(check(kOwn, "--kernel norm")), HasSubstr("--kernel"));
  EXPECT_THAT(message(check(kOwn, "--seed 3")), HasSubstr("--seed"));
  EXPECT_THAT(message(check("''")), HasSubstr("no folder"));
  EXPECT_THAT(message(check(kOwn, "--device reference")), HasSubstr("--device"));
  EXPECT_THAT(message(run_program(MIXROOF_PROGRAM " check --quick")), HasSubstr("--oracle DIR"));
  EXPECT_THAT(message(run_program(MIXROOF_PROGRAM " check --format markdown")), HasSubstr("--oracle DIR"));
}

TEST_F(CheckOracle, JsonAndMarkdown_HoldTheSameRows) {
  const Json json = check(folder_.string(), "--groups adamw --format json").json();
  EXPECT_EQ(json.at("passed"), 8);
  EXPECT_EQ(json.at("failed"), 0);
  EXPECT_EQ(json.at("rows").size(), 8u);
  const Json& row = json.at("rows").at(0);
  EXPECT_EQ(row.at("group"), "adamw");
  EXPECT_EQ(row.at("item"), "vector double");
  EXPECT_EQ(row.at("result"), "pass");
  EXPECT_LE(row.at("worst").get<double>(), row.at("limit").get<double>());
  const ProgramResult markdown = check(folder_.string(), "--groups adamw --format markdown");
  EXPECT_THAT(markdown.out, AllOf(StartsWith("| result"), HasSubstr("| adamw/vector double")));
  EXPECT_THAT(markdown.out, Not(HasSubstr("scaling")));
}

}  // namespace
}  // namespace mixroof
