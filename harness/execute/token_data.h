// Token data: a file or a seeded synthetic corpus, checked once, then cut into windows of micro-batches. To add a file
// format: its recognition and its faults in token_data.cc, with a case in the test for each fault.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "harness/execute/execution.h"

namespace mixroof {

class TokenData {
 public:
  /// Tokens of the synthetic corpus unless more are asked for.
  static constexpr std::int64_t kSyntheticTokens = std::int64_t{1} << 20;

  /// Opens and checks a file:
  ///   *.bin with llm.c's header (256 int32: 20240520, version 1, token count, zeros) as its uint16 tokens ("llm.c");
  ///   any other *.bin as raw uint16, nanoGPT's form, which needs `vocab` since the file does not tell it ("uint16");
  ///   any other file as bytes, one token each ("bytes").
  /// `vocab` is the true vocabulary of the tokens, without padding; absent: `model_vocab`. Every id is checked against
  /// it. Throws UsageError naming file, value and remedy: missing, no file, unreadable, empty, another format or
  /// version, a size that contradicts the header, an id beyond the vocabulary (with its position), a vocabulary that 16
  /// bits cannot hold, a vocabulary beyond the model's.
  static TokenData from_file(const std::filesystem::path& file, std::int64_t model_vocab,
                             std::optional<std::int64_t> vocab = std::nullopt);

  /// max(kSyntheticTokens, tokens) + 1 ids below `vocab`, the same for the same arguments everywhere. A Markov chain
  /// over a few tokens of the vocabulary: each has one successor that follows three times out of four and three rarer
  /// ones, so that a model first learns which tokens occur, then what follows what; both lower the loss within tens of
  /// updates.
  static TokenData synthetic(std::int64_t vocab, std::uint64_t seed, std::int64_t tokens = kSyntheticTokens);

  /// "bytes", "llm.c", "uint16" or "synthetic".
  const std::string& kind() const { return kind_; }
  /// Lower-case hexadecimal, of all bytes of the file; synthetic: of the ids as little-endian int32.
  const std::string& sha256() const { return sha256_; }
  std::int64_t count() const { return count_; }
  std::int32_t token(std::int64_t position) const;

  /// Whole windows of `tokens_per_window` tokens in one pass over the data: floor((count - 1) / tokens_per_window), as
  /// the last target of a window is the token after it.
  std::int64_t windows_per_epoch(std::int64_t tokens_per_window) const;
  /// Throws UsageError with the tokens needed and found when there is not one window. Call before anything is measured.
  void require_window(std::int64_t tokens_per_window) const;

  /// Window `index`, counted from 0 over all epochs: it starts at token (index mod windows per epoch) · tokens of a
  /// window. Targets are the inputs shifted by one, also across the borders of rows, micro-batches and windows. Which
  /// tokens a window holds depends on its size only, not on how it is cut into micro-batches: recipes with another
  /// micro-batch consume the same tokens. Throws as require_window does.
  Window window(std::int64_t index, std::int64_t micro_batches, std::int64_t micro_batch, std::int64_t seq) const;
  /// A window of one micro-batch.
  MicroBatch micro_batch(std::int64_t index, std::int64_t micro_batch, std::int64_t seq) const;

 private:
  TokenData() = default;

  std::string kind_, name_, sha256_;            // name_: how messages call the data
  std::shared_ptr<const unsigned char> bytes_;  // of the tokens, little-endian
  int token_bytes_ = 1;                         // of one token: 1, 2 or 4
  std::int64_t count_ = 0;
};

}  // namespace mixroof
