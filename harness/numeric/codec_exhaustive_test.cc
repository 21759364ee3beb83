// Every fp32 pattern through every encoder: the scalar functions (seven conversions) and each array path of this
// processor, against the checksums of oracle/formats/exhaustive.json. Four to five minutes of processor time, on all
// cores at once; skipped without the folder.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "harness/execute/oracle_test_support.h"
#include "harness/numeric/conversions.h"

namespace mixroof {
namespace {

constexpr int kRows = 256;             // row t: patterns (t << 24) + l
constexpr std::int64_t kChunk = 4096;  // stays in the first-level cache
constexpr std::int64_t kChunksPerRow = (std::int64_t{1} << 24) / kChunk;

struct Checksum {
  std::uint64_t sum = 0, weighted = 0;
  bool operator==(const Checksum&) const = default;
};

/// What is under test: codes of `count` inputs, each widened to 32 bits.
using EncodeChunk = std::function<void(const float* in, std::uint32_t* codes, std::int64_t count)>;

Checksum checksum_of_row(std::uint32_t row, const ScalarEncoder& encoder, std::uint32_t canonical_nan,
                         const EncodeChunk& encode_chunk) {
  std::vector<std::uint32_t> bits(kChunk), codes(kChunk);
  std::vector<float> inputs(kChunk);
  const std::uint32_t mask = encoder.magnitude_mask, largest = encoder.largest_number;
  Checksum total;
  for (std::int64_t chunk = 0; chunk < kChunksPerRow; ++chunk) {
    const auto first = static_cast<std::uint32_t>(chunk * kChunk);
    std::iota(bits.begin(), bits.end(), (row << 24) + first);
    std::memcpy(inputs.data(), bits.data(), kChunk * sizeof(float));
    encode_chunk(inputs.data(), codes.data(), kChunk);
    // Within a chunk the weights are first + 1 + i: 64 bits hold both sums, and one product by `first` is enough.
    std::uint64_t sum = 0, weighted = 0;
    for (std::uint32_t i = 0; i < kChunk; ++i) {
      const std::uint32_t code = (codes[i] & mask) > largest ? canonical_nan : codes[i];
      sum += code;
      weighted += std::uint64_t{code} * (i + 1);
    }
    total.sum += sum;
    total.weighted += weighted + sum * first;
  }
  return total;
}

template <typename Code>
void widen(const unsigned char* narrow, std::uint32_t* codes, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    Code code;
    std::memcpy(&code, narrow + i * static_cast<std::int64_t>(sizeof(Code)), sizeof(Code));
    codes[i] = code;
  }
}

void widen(Format format, const unsigned char* narrow, std::uint32_t* codes, std::int64_t count) {
  switch (bytes_of(format)) {
    case 1:
      return widen<std::uint8_t>(narrow, codes, count);
    case 2:
      return widen<std::uint16_t>(narrow, codes, count);
    default:
      return widen<std::uint32_t>(narrow, codes, count);
  }
}

class CodecExhaustive : public testing::Test {
 protected:
  void SetUp() override {
    file_ = open_oracle("formats/exhaustive");
    if (!file_) GTEST_SKIP() << kNoOracle;
  }

  /// Compares all rows of one conversion, on every core. A failing row names the top byte of the inputs.
  void expect_checksums(const std::string& what, const ScalarEncoder& encoder, const EncodeChunk& encode_chunk) {
    const auto& column = file_->manifest().at("columns").at(encoder.name);
    const auto canonical_nan =
        file_->manifest().at("canonical_nan").at(std::string(name(encoder.format))).get<std::uint32_t>();
    std::atomic<int> next = 0;
    std::vector<Checksum> got(kRows);
    const auto work = [&] {
      for (int row; (row = next++) < kRows;)
        got[row] = checksum_of_row(static_cast<std::uint32_t>(row), encoder, canonical_nan, encode_chunk);
    };
    std::vector<std::jthread> workers(std::max(1u, std::thread::hardware_concurrency()));
    for (std::jthread& worker : workers) worker = std::jthread(work);
    workers.clear();  // joins
    for (int row = 0; row < kRows; ++row) {
      const auto stored = [&](const char* key) {
        return std::uint64_t{std::strtoull(column.at(key).at(row).get<std::string>().c_str(), nullptr, 10)};
      };
      EXPECT_EQ(got[row], (Checksum{stored("sum"), stored("weighted")}))
          << what << " " << encoder.name << " row " << row;
    }
  }

 private:
  std::unique_ptr<const OracleFile> file_;
};

TEST_F(CodecExhaustive, ScalarFunctions_GiveTheChecksumsOfAllInputs) {
  for (const ScalarEncoder& encoder : scalar_encoders())
    expect_checksums("scalar function", encoder, [&](const float* in, std::uint32_t* codes, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) codes[i] = encoder.encode(in[i]);
    });
}

TEST_F(CodecExhaustive, EveryArrayPath_GivesTheChecksumsOfAllInputs) {
  for_each_codec_path([&](const std::string& path) {
    for (const ScalarEncoder& encoder : scalar_encoders()) {
      if (!encoder.in_arrays) continue;
      const Format format = encoder.format;
      expect_checksums("path " + path, encoder, [=](const float* in, std::uint32_t* codes, std::int64_t count) {
        alignas(64) unsigned char narrow[kChunk * sizeof(std::uint32_t)];
        encode(format, in, narrow, count);
        widen(format, narrow, codes, count);
      });
    }
  });
}

}  // namespace
}  // namespace mixroof
