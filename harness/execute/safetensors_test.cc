#include "harness/execute/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "harness/execute/sha256.h"
#include "harness/status.h"

namespace mixroof {
namespace {

namespace fs = std::filesystem;

class Safetensors : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  /// A file with this header and as many bytes behind it.
  fs::path file(const std::string& header, std::size_t data_bytes) const {
    std::ofstream out(path_, std::ios::binary);
    const std::uint64_t length = header.size();
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out << header << std::string(data_bytes, '\0');
    return path_;
  }
  static std::string refusal(const fs::path& path) {
    try {
      SafetensorsFile{path};
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }

  const fs::path folder_ = fs::temp_directory_path() / fmt::format("mixroof_safetensors_{}", getpid());
  const fs::path path_ = folder_ / "t.safetensors";
};

TEST_F(Safetensors, WhatIsWritten_IsReadBack_AndHasTheLayoutOfTheFormat) {
  const std::vector<StoredTensor> tensors = {{"a", Format::fp32, {2, 3}},
                                             {"scalar", Format::bf16, {}},
                                             {"empty", Format::fp16, {0, 5}},
                                             {"codes", Format::fp8_e4m3, {3}}};
  const std::vector<std::string> bytes = {std::string("0123456789abcdefghijklmn"), "xy", "", "uvw"};
  const WrittenFile written = write_safetensors(path_, tensors, {{"recipe", "fp32"}},
                                                [&](std::size_t i, std::int64_t offset, std::span<unsigned char> out) {
                                                  std::memcpy(out.data(), bytes[i].data() + offset, out.size());
                                                });
  std::ifstream stream(path_, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  ASSERT_EQ(static_cast<std::int64_t>(text.size()), written.bytes);
  EXPECT_EQ(sha256_hex(text), written.sha256);
  std::uint64_t length = 0;
  std::memcpy(&length, text.data(), sizeof length);
  EXPECT_EQ(length % 8, 0u);
  EXPECT_EQ(text[8], '{');
  EXPECT_EQ(text.substr(8 + length), bytes[0] + bytes[1] + bytes[3]);
  EXPECT_THAT(text, testing::HasSubstr(R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]})"));

  const SafetensorsFile back(path_);
  EXPECT_EQ(back.metadata().at("recipe"), "fp32");
  EXPECT_EQ(back.sha256(), written.sha256);
  ASSERT_EQ(back.tensors().size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(back.find(tensors[i].name), static_cast<int>(i));
    EXPECT_EQ(back.tensors()[i].shape, tensors[i].shape);
    EXPECT_EQ(back.tensors()[i].format, tensors[i].format);
    const std::vector<unsigned char> values = back.read(i);
    EXPECT_EQ(std::string(values.begin(), values.end()), bytes[i]);
  }
  EXPECT_EQ(back.find("b"), -1);
}

TEST_F(Safetensors, AWriteThatFails_LeavesTheOldFile) {
  file("{}", 0);
  const auto failing = [](std::size_t, std::int64_t, std::span<unsigned char>) {
    throw Error(Status::failed, "device lost");
  };
  EXPECT_THROW(write_safetensors(path_, {{"a", Format::fp32, {4}}}, {}, failing), Error);
  EXPECT_EQ(fs::file_size(path_), 10u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1) << "no temporary file is left";
}

TEST_F(Safetensors, BrokenFiles_AreRefusedWithFileAndWhatIsWrong) {
  const auto expect = [&](const std::string& header, std::size_t bytes, const std::string& what) {
    EXPECT_THAT(refusal(file(header, bytes)),
                testing::AllOf(testing::HasSubstr(path_.string()), testing::HasSubstr(what)))
        << header;
  };
  EXPECT_EQ(refusal(file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8)), "");
  expect(R"({"a":{"dtype":"F32","shape":[4611686018427387904,64],"data_offsets":[0,8]}})", 8, "more values than fit");
  expect(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7, "its header says");
  expect(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 9, "its header says");
  expect(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "'a' lies at bytes 0 to 4, expected 0 to 8");
  expect(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})", 16, "'a' lies at bytes 8 to 16");
  expect(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}})", 0, "dimension of -1");
  expect(R"({"a":{"dtype":"Q4","shape":[2],"data_offsets":[0,8]}})", 8, "dtype Q4");
  expect(R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8, "entry 'a'");
  expect(R"({"a":3})", 0, "entry 'a'");
  expect(
      R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
      0, "stands twice");
  expect(R"([1, 2])", 0, "no JSON object");
  expect("not json", 0, "no JSON object");
  std::ofstream(path_, std::ios::binary) << "abc";
  EXPECT_THAT(refusal(path_), testing::HasSubstr("3 bytes"));
  std::ofstream(path_, std::ios::binary) << "zzzzzzzzzzzz";
  EXPECT_THAT(refusal(path_), testing::HasSubstr("is cut"));
  EXPECT_THAT(refusal(folder_ / "nowhere"), testing::HasSubstr("cannot be opened"));
  EXPECT_THAT(refusal(folder_), testing::HasSubstr("is no file"));
}

}  // namespace
}  // namespace mixroof
