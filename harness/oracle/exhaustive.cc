#include "harness/oracle/exhaustive.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "harness/numeric/codec.h"

namespace mixroof {
namespace {

constexpr std::int64_t kChunk = 4096;  // stays in the first-level cache
constexpr std::int64_t kChunksPerRow = (std::int64_t{1} << 24) / kChunk;

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

}  // namespace

EncodeChunk scalar_chunks(const ScalarEncoder& encoder) {
  return [encode_one = encoder.encode](const float* in, std::uint32_t* codes, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) codes[i] = encode_one(in[i]);
  };
}

EncodeChunk array_chunks(Format format) {
  return [format](const float* in, std::uint32_t* codes, std::int64_t count) {
    alignas(64) unsigned char narrow[kChunk * sizeof(std::uint32_t)];
    for (std::int64_t done = 0; done < count; done += kChunk) {
      const std::int64_t some = std::min(kChunk, count - done);
      encode(format, in + done, narrow, some);
      widen(format, narrow, codes + done, some);
    }
  };
}

std::vector<Checksum> checksums(const ScalarEncoder& encoder, std::uint32_t canonical_nan,
                                const EncodeChunk& encode_chunk, int from, int to) {
  std::atomic<int> next = from;
  std::vector<Checksum> sums(static_cast<std::size_t>(to - from));
  const auto work = [&] {
    for (int row; (row = next++) < to;)
      sums[static_cast<std::size_t>(row - from)] =
          checksum_of_row(static_cast<std::uint32_t>(row), encoder, canonical_nan, encode_chunk);
  };
  std::vector<std::jthread> workers(std::max(1u, std::thread::hardware_concurrency()));
  for (std::jthread& worker : workers) worker = std::jthread(work);
  workers.clear();  // joins
  return sums;
}

}  // namespace mixroof
