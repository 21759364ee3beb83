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
  /// it. `document_end` is the id that ends a document; absent: the file is one. Throws UsageError naming file, value and
  /// remedy: missing, no file, unreadable, empty, another format or version, a size that contradicts the header, an id
  /// beyond the vocabulary (with its position), a vocabulary that 16 bits cannot hold, a vocabulary beyond the model's, a
  /// document end that no token is.
  static TokenData from_file(const std::filesystem::path& file, std::int64_t model_vocab,
                             std::optional<std::int64_t> vocab = std::nullopt,
                             std::optional<std::int64_t> document_end = std::nullopt);

  /// max(kSyntheticTokens, tokens) + 1 ids below `vocab`, the same for the same arguments everywhere. A Markov chain
  /// over a few tokens of the vocabulary: each has one successor that follows three times out of four and three rarer
  /// ones, so that a model first learns which tokens occur, then what follows what; both lower the loss within tens of
  /// updates. With `document_end` the chain is cut into documents of 16 to 112 tokens, that id included, each of which
  /// starts at a token of its own; it needs a vocabulary of 4. Throws UsageError for a vocabulary that is too small or
  /// lacks the id.
  static TokenData synthetic(std::int64_t vocab, std::uint64_t seed, std::int64_t tokens = kSyntheticTokens,
                             std::optional<std::int64_t> document_end = std::nullopt);

  /// "bytes", "llm.c", "uint16" or "synthetic".
  const std::string& kind() const { return kind_; }
  /// Lower-case hexadecimal, of all bytes of the file; synthetic: of the ids as little-endian int32.
  const std::string& sha256() const { return sha256_; }
  std::int64_t count() const { return count_; }
  /// The id that ends a document; nothing when rows are not cut into documents.
  const std::optional<std::int64_t>& document_end() const { return document_end_; }
  std::int32_t token(std::int64_t position) const;

  /// Whole windows of `tokens_per_window` tokens in one pass over the data: floor((count - 1) / tokens_per_window), as
  /// the last target of a window is the token after it.
  std::int64_t windows_per_epoch(std::int64_t tokens_per_window) const;
  /// Throws UsageError with the tokens needed and found when there is not one window. Call before anything is measured.
  void require_window(std::int64_t tokens_per_window) const;

  /// Window `index`, counted from 0 over all epochs: it starts at token (index mod windows per epoch) · tokens of a
  /// window. Targets are the inputs shifted by one, also across the borders of rows, micro-batches and windows. Which
  /// tokens a window holds depends on its size only, not on how it is cut into micro-batches: recipes with another
  /// micro-batch consume the same tokens. With a document end the micro-batches say where documents begin (each also at
  /// the start of its row), and the end token's own place carries no loss: its target would be the next document's first
  /// token. Throws as require_window does.
  Window window(std::int64_t index, std::int64_t micro_batches, std::int64_t micro_batch, std::int64_t seq) const;
  /// A window of one micro-batch.
  MicroBatch micro_batch(std::int64_t index, std::int64_t micro_batch, std::int64_t seq) const;

 private:
  TokenData() = default;
  bool holds(std::int64_t id) const;
  void append(MicroBatch& micro_batch, std::int64_t position, std::int64_t place) const;

  std::string kind_, name_, sha256_;            // name_: how messages call the data
  std::shared_ptr<const unsigned char> bytes_;  // of the tokens, little-endian
  int token_bytes_ = 1;                         // of one token: 1, 2 or 4
  std::int64_t count_ = 0;
  std::optional<std::int64_t> document_end_;
};

/// attention_pairs() of a micro-batch, the mean over those of the first `windows` windows (of one epoch at most), rounded;
/// 0 without a document end.
std::int64_t mean_attention_pairs(const TokenData& data, const Batch& batch, std::int64_t windows);

}  // namespace mixroof
