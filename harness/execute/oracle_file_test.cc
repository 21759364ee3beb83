#include "harness/execute/oracle_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "harness/status.h"

namespace mixroof {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OracleFileTest : public ::testing::Test {
 protected:
  OracleFileTest() {
    const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) / (std::string("oracle_file_") + test->name());
    std::filesystem::create_directories(folder_);
  }
  ~OracleFileTest() override { std::filesystem::remove_all(folder_); }

  std::string stem() const { return (folder_ / "set").string(); }
  void write(const std::string& manifest, const std::string& bytes = {}) {
    std::ofstream(stem() + ".json") << manifest;
    std::ofstream(stem() + ".bin", std::ios::binary) << bytes;
  }
  std::string message() {
    try {
      const OracleFile file(stem());
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path folder_;
};

constexpr const char* kManifest = R"({"seed": 7, "bin": {"file": "set.bin"}, "arrays": {
  "a/f": {"dtype": "float32", "shape": [2, 1], "offset": 0, "bytes": 8},
  "a/i": {"dtype": "int32", "shape": [], "offset": 8, "bytes": 4},
  "a/b": {"dtype": "uint8", "shape": [3], "offset": 12, "bytes": 3}}})";

std::string array_bytes() {
  const float floats[] = {1.5f, -2};
  const std::int32_t whole = -1;
  std::string bytes(15, '\0');
  std::memcpy(bytes.data(), floats, 8);
  std::memcpy(bytes.data() + 8, &whole, 4);
  std::memcpy(bytes.data() + 12, "\x01\x02\xff", 3);
  return bytes;
}

TEST_F(OracleFileTest, ArraysComeWithTheirShapesAndAsDoubles) {
  write(kManifest, array_bytes());
  const OracleFile file(stem());
  EXPECT_THAT(file.array_names(), ElementsAre("a/b", "a/f", "a/i"));
  EXPECT_THAT(file.shape("a/f"), ElementsAre(2, 1));
  EXPECT_THAT(file.values("a/f"), ElementsAre(1.5, -2));
  EXPECT_TRUE(file.shape("a/i").empty());
  EXPECT_THAT(file.values("a/i"), ElementsAre(-1));
  EXPECT_THAT(file.values("a/b"), ElementsAre(1, 2, 255));
  EXPECT_EQ(file.dtype("a/b"), "uint8");
  EXPECT_FALSE(file.has_array("b"));
  EXPECT_EQ(oracle_member<std::int64_t>(file.manifest(), "seed", file.path()), 7);
}

TEST_F(OracleFileTest, AManifestWithoutArraysNeedsNoBin) {
  write(R"({"x": "inf"})");
  std::filesystem::remove(stem() + ".bin");
  const OracleFile file(stem());
  EXPECT_EQ(oracle_number(file.manifest().at("x")), INFINITY);
}

TEST_F(OracleFileTest, FaultsNameTheFileAndTheKey) {
  EXPECT_THAT(message(), HasSubstr("set.json: cannot be opened"));
  write("{");
  EXPECT_THAT(message(), HasSubstr("not JSON"));
  write(R"({"arrays": {}})");
  EXPECT_THAT(message(), HasSubstr("key 'bin' is missing"));
  write(kManifest, array_bytes().substr(0, 14));
  EXPECT_THAT(message(), HasSubstr("array 'a/b' ends at byte 15"));
  write(R"({"bin": {"file": "set.bin"}, "arrays": {"a": {"dtype": "complex", "shape": [], "offset": 0}}})");
  EXPECT_THAT(message(), HasSubstr("unknown dtype 'complex'"));
  write(R"({"bin": {"file": "set.bin"}, "arrays": {"a": {"dtype": "uint8", "shape": "x", "offset": 0}}})");
  EXPECT_THAT(message(), HasSubstr("key 'shape' has another type"));
  write(R"({"bin": {"file": "set.bin"}, "arrays": {"a": {"dtype": "uint8", "shape": [1], "offset": -1}}})");
  EXPECT_THAT(message(), HasSubstr("array 'a'"));
  write(kManifest, array_bytes());
  const OracleFile file(stem());
  EXPECT_THROW(file.values("a/x"), UsageError);
}

TEST_F(OracleFileTest, TheEnvironmentNamesTheFolderBeforeTheFallback) {
  const char* before = std::getenv("MIXROOF_ORACLE");
  const std::string saved = before ? before : "";
  setenv("MIXROOF_ORACLE", "/elsewhere", 1);
  EXPECT_EQ(find_oracle(folder_.string()), "/elsewhere");
  unsetenv("MIXROOF_ORACLE");
  EXPECT_EQ(find_oracle(folder_.string()), folder_.string());
  EXPECT_EQ(find_oracle((folder_ / "absent").string()), std::nullopt);
  if (before) setenv("MIXROOF_ORACLE", saved.c_str(), 1);
}

}  // namespace
}  // namespace mixroof
