#include "harness/execute/token_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "harness/status.h"

namespace mixroof {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kGpt2Vocab = 50257;

class TokenFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("mixroof_tokens_" + std::to_string(getpid()) + "_" +
                                                        testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }

  /// llm.c's layout: 256 int32 of header, then uint16 tokens.
  std::filesystem::path write_llmc(const std::string& name, const std::vector<std::uint16_t>& tokens,
                                   std::int32_t magic = 20240520, std::int32_t version = 1,
                                   std::int64_t claimed = -2) const {
    std::vector<std::int32_t> header(256, 0);
    header[0] = magic;
    header[1] = version;
    header[2] = static_cast<std::int32_t>(claimed == -2 ? static_cast<std::int64_t>(tokens.size()) : claimed);
    return write(name, bytes_of_vector(header) + bytes_of_vector(tokens));
  }

  template <typename T>
  static std::string bytes_of_vector(const std::vector<T>& values) {
    std::string bytes(values.size() * sizeof(T), '\0');
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }

  static std::vector<std::uint16_t> counting(std::size_t n) {
    std::vector<std::uint16_t> tokens(n);
    std::iota(tokens.begin(), tokens.end(), std::uint16_t{0});
    return tokens;
  }

  std::filesystem::path folder_;
};

std::string refusal(const std::filesystem::path& file, std::int64_t model_vocab = kGpt2Vocab,
                    std::optional<std::int64_t> vocab = std::nullopt) {
  try {
    TokenData::from_file(file, model_vocab, vocab);
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr(file.string()));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("\n")));
    return error.what();
  }
  return "";
}

// ---- TOK-1: the wrong or a cut file. The same ten tokens each time, one good file and the faults.

TEST_F(TokenFile, TOK1_AGoodFile_IsRead) {  // a: 1024 + 2·10 = 1044 bytes
  const auto file = write_llmc("good.bin", counting(10));
  ASSERT_EQ(std::filesystem::file_size(file), 1044u);
  const TokenData data = TokenData::from_file(file, kGpt2Vocab);
  EXPECT_EQ(data.kind(), "llm.c");
  EXPECT_EQ(data.count(), 10);
  EXPECT_EQ(data.token(9), 9);
}

TEST_F(TokenFile, TOK1_AnOddNumberOfBytes_IsNamed) {  // b
  const auto file = write_llmc("odd.bin", counting(10));
  std::filesystem::resize_file(file, 1043);
  EXPECT_THAT(refusal(file), AllOf(HasSubstr("1044 bytes expected"), HasSubstr("1043 bytes, an odd number")));
}

TEST_F(TokenFile, TOK1_AHeaderThatSaysMoreTokensThanThereAre_IsNamed) {  // c: 1024 + 2·11 = 1046
  EXPECT_THAT(refusal(write_llmc("eleven.bin", counting(10), 20240520, 1, 11)),
              HasSubstr("header says 11 tokens (1046 bytes expected), file has 1044 bytes"));
}

TEST_F(TokenFile, TOK1_AnotherVersion_IsNamed) {  // d
  EXPECT_THAT(refusal(write_llmc("version.bin", counting(10), 20240520, 2)),
              AllOf(HasSubstr("version 2"), HasSubstr("expected version 1")));
}

TEST_F(TokenFile, TOK1_32BitTokens_AreRefusedByNameAndNeverReadAs16Bit) {  // e
  const auto file = write_llmc("llama3.bin", counting(20), 20240801, 7, 10);
  EXPECT_THAT(refusal(file), AllOf(HasSubstr("20240801"), HasSubstr("32-bit"), HasSubstr("20240520")));
  EXPECT_THAT(refusal(file, kGpt2Vocab, kGpt2Vocab), HasSubstr("32-bit"));  // --vocab does not make it raw
}

TEST_F(TokenFile, TOK1_AnEmptyFile_IsNamed) {  // f
  EXPECT_THAT(refusal(write("empty.bin", "")), HasSubstr("is empty (0 bytes)"));
  EXPECT_THAT(refusal(write("empty.txt", "")), HasSubstr("is empty (0 bytes)"));
}

TEST_F(TokenFile, TOK1_AHeaderWithoutTokens_IsNamed) {  // g
  EXPECT_THAT(refusal(write_llmc("none.bin", {})), HasSubstr("0 tokens, expected at least 1"));
}

TEST_F(TokenFile, TOK1_ANegativeCount_IsNamed) {  // h
  EXPECT_THAT(refusal(write_llmc("negative.bin", counting(10), 20240520, 1, -1)),
              HasSubstr("-1 tokens, expected at least 1"));
}

TEST_F(TokenFile, TOK1_ABigEndianMagic_IsNamed) {  // j
  EXPECT_THAT(refusal(write_llmc("big.bin", counting(10), static_cast<std::int32_t>(__builtin_bswap32(20240520u)))),
              AllOf(HasSubstr("big-endian"), HasSubstr("20240520")));
}

TEST_F(TokenFile, TOK1_ACutHeader_IsNamed) {
  const auto file = write_llmc("cut.bin", counting(10));
  std::filesystem::resize_file(file, 100);
  EXPECT_THAT(refusal(file), AllOf(HasSubstr("1024 bytes"), HasSubstr("file has 100")));
}

TEST_F(TokenFile, TOK1_ADirectoryAMissingFileAndAPipe_AreNamed) {
  EXPECT_THAT(refusal(folder_), HasSubstr("is a directory"));
  EXPECT_THAT(refusal(folder_ / "absent.bin"), HasSubstr("no such file"));
  EXPECT_THAT(refusal("/dev/null"), HasSubstr("not a regular file"));
}

TEST_F(TokenFile, TOK1_AFileWithoutPermission_IsNamedWithTheSystemsReason) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read every file";
  const auto file = write("secret.bin", "abcd");
  std::filesystem::permissions(file, std::filesystem::perms::none);
  EXPECT_THAT(refusal(file), HasSubstr("Permission denied"));
}

TEST_F(TokenFile, TOK1_RawUint16_NeedsTheVocabularyAndAnEvenSize) {
  const auto file = write("train.bin", bytes_of_vector(counting(300)));
  EXPECT_THAT(refusal(file), AllOf(HasSubstr("raw uint16"), HasSubstr("--vocab")));
  const TokenData data = TokenData::from_file(file, kGpt2Vocab, kGpt2Vocab);
  EXPECT_EQ(data.kind(), "uint16");
  EXPECT_EQ(data.count(), 300);
  EXPECT_EQ(data.token(299), 299);
  std::filesystem::resize_file(file, 599);
  EXPECT_THAT(refusal(file, kGpt2Vocab, kGpt2Vocab), HasSubstr("599 bytes"));
}

TEST_F(TokenFile, AnyOtherFile_IsBytes) {
  const TokenData data = TokenData::from_file(write("text.txt", "abc"), 256);
  EXPECT_EQ(data.kind(), "bytes");
  EXPECT_EQ(data.count(), 3);
  EXPECT_EQ(data.token(0), 'a');
  // FIPS 180-2, appendix B.1: SHA-256 of "abc".
  EXPECT_EQ(data.sha256(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_F(TokenFile, Bytes_NeedAVocabularyOf256) {
  EXPECT_THAT(refusal(write("text.txt", "abc"), 255), AllOf(HasSubstr("at least 256"), HasSubstr("255")));
}

// ---- TOK-2: ids beyond the vocabulary.

TEST_F(TokenFile, TOK2_AnIdBeyondTheVocabulary_FailsWithPositionAndId) {
  std::vector<std::uint16_t> tokens(33, 0);
  tokens[0] = 50256, tokens[1] = 50257, tokens[2] = 50303, tokens[3] = 65535;
  const auto file = write_llmc("ids.bin", tokens);
  EXPECT_THAT(refusal(file), AllOf(HasSubstr("position 1 holds id 50257"), HasSubstr("3 of 33")));
  // A model padded to 50304: the true vocabulary decides.
  EXPECT_THAT(refusal(file, 50304, kGpt2Vocab), HasSubstr("position 1 holds id 50257"));
}

TEST_F(TokenFile, TOK2_AVocabularyThat16BitsCannotHold_IsRefused) {
  const auto file = write_llmc("wrapped.bin", counting(10));
  EXPECT_THAT(refusal(file, 128256), AllOf(HasSubstr("65536"), HasSubstr("128256")));
  EXPECT_EQ(TokenData::from_file(file, 128256, kGpt2Vocab).count(), 10);  // written by a smaller tokenizer, said so
}

TEST_F(TokenFile, TOK2_AVocabularyBeyondTheModels_IsRefused) {
  EXPECT_THAT(refusal(write_llmc("ids.bin", counting(10)), 256, 1000), AllOf(HasSubstr("1000"), HasSubstr("256")));
}

// ---- TOK-3: the "+1" of the loader.

TEST_F(TokenFile, TOK3_WindowsAreTheTokensLessOneOverTheWindow) {  // B 2, T 8
  const auto windows = [&](std::size_t n) {
    return TokenData::from_file(write_llmc("n.bin", counting(n)), kGpt2Vocab).windows_per_epoch(16);
  };
  EXPECT_EQ(windows(16), 0);
  EXPECT_EQ(windows(17), 1);
  EXPECT_EQ(windows(96), 5);
  EXPECT_EQ(windows(97), 6);
  EXPECT_EQ(windows(100), 6);
}

TEST_F(TokenFile, TOK3_TooFewTokensForOneWindow_IsAnErrorWithNeededAndFound) {
  const TokenData data = TokenData::from_file(write_llmc("n.bin", counting(16)), kGpt2Vocab);
  try {
    data.micro_batch(0, 2, 8);
    FAIL() << "a window of 16 tokens needs 17";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("needs 17"), HasSubstr("found 16"), HasSubstr("n.bin")));
  }
}

TEST_F(TokenFile, TOK3_TargetsAreInputsShiftedByOne_AlsoAcrossTheBorder) {
  const TokenData data = TokenData::from_file(write_llmc("n.bin", counting(100)), kGpt2Vocab);
  for (std::int64_t k = 0; k < 12; ++k) {  // two epochs of six
    const MicroBatch batch = data.micro_batch(k, 2, 8);
    ASSERT_EQ(batch.tokens.size(), 16u);
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(batch.tokens[static_cast<std::size_t>(i)], 16 * (k % 6) + i);
      EXPECT_EQ(batch.targets[static_cast<std::size_t>(i)], 16 * (k % 6) + i + 1);
    }
  }
  EXPECT_EQ(data.micro_batch(0, 2, 8).targets.back(), 16);
  EXPECT_EQ(data.micro_batch(1, 2, 8).tokens.front(), 16);
}

TEST_F(TokenFile, TOK3_FourRanksShareAWindow) {  // floor(99 / 64)
  EXPECT_EQ(TokenData::from_file(write_llmc("n.bin", counting(100)), kGpt2Vocab).windows_per_epoch(4 * 16), 1);
}

TEST_F(TokenFile, AWindowHoldsTheSameTokens_HoweverItIsCut) {
  // 100 tokens, windows of 32: three an epoch, so that window 3 is window 0 again for every micro-batch.
  const TokenData data = TokenData::from_file(write_llmc("n.bin", counting(100)), kGpt2Vocab);
  for (std::int64_t w = 0; w < 5; ++w) {
    const Window one = data.window(w, 1, 4, 8), four = data.window(w, 4, 1, 8);
    ASSERT_EQ(four.size(), 4u);
    std::vector<std::int32_t> tokens, targets;
    for (const MicroBatch& batch : four) {
      tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
      targets.insert(targets.end(), batch.targets.begin(), batch.targets.end());
    }
    EXPECT_EQ(tokens, one.front().tokens);
    EXPECT_EQ(targets, one.front().targets);
  }
  EXPECT_EQ(data.window(3, 1, 4, 8).front().tokens.front(), 0);
}

// ---- the synthetic corpus

TEST(SyntheticTokens, TheSameSeedGivesTheSameCorpus_AnotherSeedAnother) {
  const TokenData a = TokenData::synthetic(256, 1), b = TokenData::synthetic(256, 1), c = TokenData::synthetic(256, 2);
  EXPECT_EQ(a.sha256(), b.sha256());
  EXPECT_NE(a.sha256(), c.sha256());
  EXPECT_EQ(a.kind(), "synthetic");
  EXPECT_EQ(a.count(), TokenData::kSyntheticTokens + 1);
}

TEST(SyntheticTokens, HoldAsManyTokensAsAsked) {
  EXPECT_EQ(TokenData::synthetic(256, 1, 3'000'000).windows_per_epoch(3'000'000), 1);
}

/// Entropy in nats of a histogram.
template <typename Key>
double entropy(const std::map<Key, std::int64_t>& counts) {
  double total = 0, sum = 0;
  for (const auto& [key, n] : counts) total += static_cast<double>(n);
  for (const auto& [key, n] : counts) sum -= static_cast<double>(n) / total * std::log(static_cast<double>(n) / total);
  return sum;
}

TEST(SyntheticTokens, CanBeLearned_EntropyFallsFarBelowTheVocabularys) {
  for (const std::int64_t vocab : {256, 8192, 50257, 128256}) {
    const TokenData data = TokenData::synthetic(vocab, 7);
    std::map<std::int32_t, std::int64_t> single;
    std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> pairs;
    for (std::int64_t i = 0; i + 1 < 200000; ++i) {
      ASSERT_LT(data.token(i), vocab);
      ASSERT_GE(data.token(i), 0);
      ++single[data.token(i)];
      ++pairs[{data.token(i), data.token(i + 1)}];
    }
    EXPECT_EQ(single.size(), 64u) << vocab;
    // At most log 64 = 4.16 nats; the next token given this one at most 0.84: 3/4 and three times 1/12.
    EXPECT_LT(entropy(single), 4.17) << vocab;
    EXPECT_LT(entropy(pairs) - entropy(single), 0.85) << vocab;
    EXPECT_GT(entropy(pairs) - entropy(single), 0.6) << vocab;
  }
}

TEST(SyntheticTokens, TinyVocabularies_StayInRange) {
  for (const std::int64_t vocab : {1, 2, 3, 5}) {
    const TokenData data = TokenData::synthetic(vocab, 1);
    std::set<std::int32_t> seen;
    for (std::int64_t i = 0; i < 1000; ++i) seen.insert(data.token(i));
    EXPECT_LT(*seen.rbegin(), vocab);
    EXPECT_EQ(seen.size(), vocab == 1 ? 1u : 2u);
  }
  EXPECT_THROW(TokenData::synthetic(0, 1), UsageError);
}

}  // namespace
}  // namespace mixroof
