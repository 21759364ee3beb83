// Every fp32 pattern through an encoder, as checksums: rows of 2^24 inputs with the same top byte.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "harness/numeric/conversions.h"

namespace mixroof {

struct Checksum {
  std::uint64_t sum = 0;       // Σ code modulo 2^64
  std::uint64_t weighted = 0;  // Σ code·(l + 1), l = 0 … 2^24 - 1 within the row
  bool operator==(const Checksum&) const = default;
};

/// What is under test: codes of `count` inputs, each widened to 32 bits. Called from several threads.
using EncodeChunk = std::function<void(const float* in, std::uint32_t* codes, std::int64_t count)>;
/// The scalar function of an encoder, or the array function of its format on the path that is taken now.
EncodeChunk scalar_chunks(const ScalarEncoder& encoder);
EncodeChunk array_chunks(Format format);

/// Rows `from` … `to` - 1 (of 256) on all processors; NaN results count as `canonical_nan`.
std::vector<Checksum> checksums(const ScalarEncoder& encoder, std::uint32_t canonical_nan,
                                const EncodeChunk& encode_chunk, int from, int to);

}  // namespace mixroof
