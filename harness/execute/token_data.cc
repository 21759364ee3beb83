#include "harness/execute/token_data.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "harness/numeric/checked.h"
#include "harness/execute/sha256.h"
#include "harness/status.h"

namespace mixroof {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

// llm.c's token files: 256 int32 of header, then the tokens.
constexpr std::int64_t kHeaderBytes = 256 * 4;
constexpr std::int32_t kMagic16 = 20240520;  // version 1: uint16 tokens
constexpr std::int32_t kMagic32 = 20240801;  // version 7: uint32 tokens
constexpr std::int64_t kMost16BitVocab = 65536;
constexpr std::int64_t kByteVocab = 256;

using Bytes = std::span<const unsigned char>;

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw UsageError(fmt::format("{}: {}", file, what));
}

struct FileBytes {
  std::shared_ptr<const unsigned char> data;
  std::size_t size = 0;

  Bytes bytes() const { return {data.get(), size}; }
};

/// Mapped rather than read: a corpus may be larger than the memory that training needs.
FileBytes map_file(const std::string& file) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT) refuse(file, "no such file; give --data the path of a token or text file");
    refuse(file, fmt::format("cannot be opened ({}); check the path and its permissions", std::strerror(errno)));
  }
  const auto close_fd = std::shared_ptr<void>(nullptr, [fd](void*) { close(fd); });
  struct stat info = {};
  if (fstat(fd, &info) != 0) refuse(file, fmt::format("cannot be read ({})", std::strerror(errno)));
  if (S_ISDIR(info.st_mode)) refuse(file, "is a directory; give --data one file in it");
  if (!S_ISREG(info.st_mode)) refuse(file, "is not a regular file; give --data a file on disk");
  if (info.st_size == 0) refuse(file, "is empty (0 bytes); give --data a file with tokens or text");
  const auto size = static_cast<std::size_t>(info.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (address == MAP_FAILED) refuse(file, fmt::format("cannot be mapped ({})", std::strerror(errno)));
  return {std::shared_ptr<const unsigned char>(static_cast<const unsigned char*>(address),
                                               [address, size](const unsigned char*) { munmap(address, size); }),
          size};
}

std::int32_t read_int32(Bytes bytes, std::size_t index) {
  std::int32_t value = 0;
  std::memcpy(&value, bytes.data() + 4 * index, sizeof value);
  return value;
}

std::int32_t reversed(std::int32_t value) {
  return static_cast<std::int32_t>(__builtin_bswap32(static_cast<std::uint32_t>(value)));
}

/// The first word of the file when it is one that llm.c's files start with, in either byte order.
void refuse_other_magic(const std::string& file, std::int32_t magic) {
  if (magic == kMagic32)
    refuse(file,
           fmt::format("magic number {} (llm.c, version 7: 32-bit tokens), expected {} (16-bit tokens); write the "
                       "tokens as uint16",
                       magic, kMagic16));
  if (reversed(magic) == kMagic16 || reversed(magic) == kMagic32)
    refuse(file, fmt::format("magic number {} is {} in big-endian order, expected little-endian {}; write the file "
                             "little-endian",
                             magic, reversed(magic), kMagic16));
}

/// Number of tokens behind llm.c's header.
std::int64_t check_llmc_header(const std::string& file, Bytes bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (size < kHeaderBytes)
    refuse(file,
           fmt::format("llm.c's header has {} bytes, file has {}; it was cut, write it again", kHeaderBytes, size));
  const std::int32_t version = read_int32(bytes, 1), count = read_int32(bytes, 2);
  if (version != 1)
    refuse(file, fmt::format("header says version {}, expected version 1 (16-bit tokens); write the file as version 1",
                             version));
  if (count < 0) refuse(file, fmt::format("header says {} tokens, expected at least 1; write the file again", count));
  const std::int64_t expected = kHeaderBytes + 2 * std::int64_t{count};
  const std::string_view odd = size % 2 ? ", an odd number that no 16-bit tokens give" : "";
  if (size != expected)
    refuse(file, fmt::format("header says {} tokens ({} bytes expected), file has {} bytes{}; write it again", count,
                             expected, size, odd));
  if (count == 0) refuse(file, "header says 0 tokens, expected at least 1; write the file with tokens");
  return count;
}

/// The vocabulary that ids are checked against. Throws when the tokens cannot be of it or the model has no row for
/// each.
std::int64_t true_vocab(const std::string& file, bool is_16_bit, std::int64_t model_vocab,
                        std::optional<std::int64_t> vocab) {
  const std::int64_t wanted = vocab.value_or(model_vocab);
  if (wanted < 1 || wanted > model_vocab)
    refuse(file, fmt::format("--vocab is {}, the model has {} tokens; give 1 to {} or another --model", wanted,
                             model_vocab, model_vocab));
  if (is_16_bit && wanted > kMost16BitVocab)
    refuse(file,
           fmt::format(
               "16-bit tokens hold ids below {}, the vocabulary has {}: larger ids have wrapped; give --vocab N of "
               "the tokenizer that wrote the file, or another file",
               kMost16BitVocab, wanted));
  if (!is_16_bit && wanted < kByteVocab)
    refuse(file,
           fmt::format("bytes as tokens need a vocabulary of at least {}, this one has {}; choose another --model",
                       kByteVocab, wanted));
  return wanted;
}

void check_ids(const std::string& file, Bytes tokens, std::int64_t vocab) {
  std::int64_t beyond = 0, first = 0;
  std::uint16_t first_id = 0;
  const auto count = static_cast<std::int64_t>(tokens.size() / 2);
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint16_t id = 0;
    std::memcpy(&id, tokens.data() + 2 * i, sizeof id);
    if (id < vocab) continue;
    if (beyond++ == 0) first = i, first_id = id;
  }
  if (beyond > 0)
    refuse(file,
           fmt::format(
               "position {} holds id {}, the vocabulary of {} ends at {} ({} of {} tokens are beyond it); give the "
               "--model or --vocab of the tokenizer that wrote the file",
               first, first_id, vocab, vocab - 1, beyond, count));
}

/// Successors of a token in the synthetic chain: the first follows with probability 3/4.
constexpr std::size_t kSuccessors = 4;

std::vector<std::array<std::uint32_t, kSuccessors>> make_chain(std::uint32_t states, std::mt19937_64& random) {
  // The frequent successors form one ring, so that the chain visits every state.
  std::vector<std::uint32_t> ring(states);
  std::iota(ring.begin(), ring.end(), 0u);
  for (std::uint32_t i = states; i > 1; --i) std::swap(ring[i - 1], ring[random() % i]);
  std::vector<std::array<std::uint32_t, kSuccessors>> chain(states);
  for (std::uint32_t i = 0; i < states; ++i) {
    auto& successors = chain[ring[i]];
    successors[0] = ring[(i + 1) % states];
    for (std::size_t s = 1; s < kSuccessors; ++s) successors[s] = static_cast<std::uint32_t>(random() % states);
  }
  return chain;
}

}  // namespace

TokenData TokenData::from_file(const std::filesystem::path& path, std::int64_t model_vocab,
                               std::optional<std::int64_t> vocab, std::optional<std::int64_t> document_end) {
  const std::string file = path.string();
  const FileBytes mapped = map_file(file);
  const Bytes bytes = mapped.bytes();
  TokenData data;
  data.name_ = file;
  std::size_t begin = 0;
  if (path.extension() != ".bin") {
    data.kind_ = "bytes";
    data.count_ = static_cast<std::int64_t>(bytes.size());
    true_vocab(file, false, model_vocab, vocab);
  } else {
    const std::int32_t magic = bytes.size() >= 4 ? read_int32(bytes, 0) : 0;
    refuse_other_magic(file, magic);
    data.token_bytes_ = 2;
    if (magic == kMagic16) {
      data.kind_ = "llm.c";
      data.count_ = check_llmc_header(file, bytes);
      begin = kHeaderBytes;
    } else {
      data.kind_ = "uint16";
      if (!vocab)
        refuse(file, fmt::format(
                         "has no llm.c header (first word {}, expected {}), so it is raw uint16, which needs --vocab N",
                         magic, kMagic16));
      if (bytes.size() % 2 != 0)
        refuse(file, fmt::format("{} bytes are no whole number of 16-bit tokens; write it again", bytes.size()));
      data.count_ = static_cast<std::int64_t>(bytes.size() / 2);
    }
    check_ids(file, bytes.subspan(begin), true_vocab(file, true, model_vocab, vocab));
  }
  data.sha256_ = sha256_hex(bytes);
  data.bytes_ = std::shared_ptr<const unsigned char>(mapped.data, mapped.data.get() + begin);
  data.document_end_ = document_end;
  if (document_end && !data.holds(*document_end))
    refuse(file, fmt::format("none of its {} tokens is the document end {}; give --document-end the id that ends documents "
                             "in this file, or leave it out",
                             data.count_, *document_end));
  // Pages that the checks touched would otherwise be counted as memory of training.
  madvise(const_cast<unsigned char*>(bytes.data()), bytes.size(), MADV_DONTNEED);
  return data;
}

TokenData TokenData::synthetic(std::int64_t vocab, std::uint64_t seed, std::int64_t tokens,
                               std::optional<std::int64_t> document_end) {
  constexpr std::int64_t kShortestDocument = 16, kLongestDocument = 112;
  const std::int64_t least = document_end ? 4 : 1;  // from 4 on tokens lie apart, so that the end id finds a place
  if (vocab < least)
    throw UsageError(fmt::format("synthetic tokens: the vocabulary is {}, expected at least {}", vocab, least));
  if (document_end && (*document_end < 0 || *document_end >= vocab))
    throw UsageError(fmt::format("--document-end is {}, the vocabulary of {} has 0 to {}", *document_end, vocab, vocab - 1));
  constexpr std::int64_t kMostStates = 64;
  const auto states =
      static_cast<std::uint32_t>(std::clamp<std::int64_t>(vocab / 4, std::min<std::int64_t>(vocab, 2), kMostStates));
  std::mt19937_64 random(seed);
  const auto chain = make_chain(states, random);
  // Spread over the vocabulary, a different token for each state.
  const std::int64_t spacing = vocab / states;
  const auto count = static_cast<std::size_t>(checked_sum(std::max(tokens, kSyntheticTokens), 1));
  const auto ids = std::make_shared<std::vector<std::int32_t>>(count);
  std::uint32_t state = 0;
  std::int64_t left = kLongestDocument;  // tokens of the document
  for (std::int32_t& id : *ids) {
    if (document_end && --left == 0) {
      id = static_cast<std::int32_t>(*document_end);
      left = kShortestDocument + static_cast<std::int64_t>(random() % (kLongestDocument - kShortestDocument + 1));
      state = static_cast<std::uint32_t>(random() % states);
      continue;
    }
    id = static_cast<std::int32_t>(state * spacing);
    if (id == document_end) ++id;
    const std::uint64_t draw = random();
    const std::size_t successor = draw % 4 != 0 ? 0 : 1 + (draw >> 32) % (kSuccessors - 1);
    state = chain[state][successor];
  }
  TokenData data;
  data.kind_ = "synthetic";
  data.name_ = "synthetic tokens";
  data.token_bytes_ = 4;
  data.count_ = static_cast<std::int64_t>(count);
  data.bytes_ = std::shared_ptr<const unsigned char>(ids, reinterpret_cast<const unsigned char*>(ids->data()));
  data.sha256_ = sha256_hex(Bytes{data.bytes_.get(), count * sizeof(std::int32_t)});
  data.document_end_ = document_end;
  return data;
}

std::int32_t TokenData::token(std::int64_t position) const {
  std::int32_t id = 0;
  std::memcpy(&id, bytes_.get() + position * token_bytes_, static_cast<std::size_t>(token_bytes_));
  return id;
}

bool TokenData::holds(std::int64_t id) const {
  for (std::int64_t position = 0; position < count_; ++position)
    if (token(position) == id) return true;
  return false;
}

std::int64_t TokenData::windows_per_epoch(std::int64_t tokens_per_window) const {
  return tokens_per_window < 1 ? 0 : (count_ - 1) / tokens_per_window;
}

void TokenData::require_window(std::int64_t tokens_per_window) const {
  if (windows_per_epoch(tokens_per_window) > 0) return;
  throw UsageError(
      fmt::format("{}: a window of {} tokens needs {} (the last target is one further), found {}; give fewer "
                  "--tokens-per-update or more data",
                  name_, tokens_per_window, checked_sum(tokens_per_window, 1), count_));
}

void TokenData::append(MicroBatch& m, std::int64_t position, std::int64_t place) const {
  const std::int32_t id = token(position);
  const bool ends_document = id == document_end_;
  if (document_end_) {
    const bool begins_document = place == 0 || m.tokens.back() == document_end_;
    m.first_key.push_back(begins_document ? static_cast<std::int32_t>(place) : m.first_key.back());
    m.position_ids.push_back(static_cast<std::int32_t>(place) - m.first_key.back());
  }
  m.tokens.push_back(id);
  m.targets.push_back(ends_document ? -1 : token(position + 1));
}

Window TokenData::window(std::int64_t index, std::int64_t micro_batches, std::int64_t micro_batch,
                         std::int64_t seq) const {
  const std::int64_t batch_tokens = checked_product({micro_batch, seq});
  const std::int64_t window_tokens = checked_product({batch_tokens, micro_batches});
  require_window(window_tokens);
  std::int64_t position = index % windows_per_epoch(window_tokens) * window_tokens;
  Window window(static_cast<std::size_t>(micro_batches));
  for (MicroBatch& batch : window)
    for (std::int64_t i = 0; i < batch_tokens; ++i, ++position) append(batch, position, i % seq);
  return window;
}

MicroBatch TokenData::micro_batch(std::int64_t index, std::int64_t micro_batch, std::int64_t seq) const {
  return std::move(window(index, 1, micro_batch, seq).front());
}

std::int64_t mean_attention_pairs(const TokenData& data, const Batch& batch, std::int64_t windows) {
  if (!data.document_end()) return 0;
  const std::int64_t distinct = std::min(windows, data.windows_per_epoch(batch.tokens_per_update()));
  std::int64_t pairs = 0;
  for (std::int64_t w = 0; w < distinct; ++w)
    for (const MicroBatch& m : data.window(w, batch.micro_batches, batch.micro_batch, batch.seq))
      pairs += attention_pairs(m, batch.seq);
  const std::int64_t micro_batches = checked_product({distinct, batch.micro_batches});
  return (pairs + micro_batches / 2) / micro_batches;
}

}  // namespace mixroof
