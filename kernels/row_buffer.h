// Rows of any format as fp32 for CPU kernels: fp32 tensors are used in place, others pass through a small buffer of the
// caller's (on the stack, so that run() allocates nothing). Wide rows are walked in chunks of kRowChunk elements.
//
//   RowBuffer in, out;
//   for_chunks(width, [&](std::int64_t at, std::int64_t n) {
//     const float* x = load_row(x_format, x_tensor, first + at, n, in);
//     float* y = row_for_store(y_format, y_tensor, first + at, out);
//     …
//     store_row(y_format, y, n, y_tensor, first + at);
//   });
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "harness/numeric/codec.h"
#include "harness/numeric/format.h"

namespace mixroof {

/// Elements of one chunk: 4 KiB of fp32, so that a handful of buffers stay in the L1 cache.
inline constexpr std::int64_t kRowChunk = 1024;

struct RowBuffer {
  alignas(64) float values[kRowChunk];
};

/// Address of element `index` of a tensor.
inline const void* element_address(Format format, const void* tensor, std::int64_t index) {
  return static_cast<const std::byte*>(tensor) + index * bytes_of(format);
}
inline void* element_address(Format format, void* tensor, std::int64_t index) {
  return static_cast<std::byte*>(tensor) + index * bytes_of(format);
}

/// `count` values from element `first` on as fp32: a pointer into the tensor when it is fp32, else decoded into
/// `buffer` (at least `count` floats). Valid until the buffer or the tensor changes.
inline const float* load_row(Format format, const void* tensor, std::int64_t first, std::int64_t count, float* buffer) {
  const void* source = element_address(format, tensor, first);
  if (format == Format::fp32) return static_cast<const float*>(source);
  decode(format, source, buffer, count);
  return buffer;
}

/// Where a kernel writes its fp32 results before store_row: the tensor itself when it is fp32, else `buffer`.
inline float* row_for_store(Format format, void* tensor, std::int64_t first, float* buffer) {
  return format == Format::fp32 ? static_cast<float*>(element_address(format, tensor, first)) : buffer;
}

/// Rounds `count` values of `row` (from row_for_store) once into the tensor; nothing to do when it is fp32.
inline void store_row(Format format, const float* row, std::int64_t count, void* tensor, std::int64_t first) {
  if (format != Format::fp32) encode(format, row, element_address(format, tensor, first), count);
}

/// The same with a RowBuffer; `count` is at most kRowChunk.
inline const float* load_row(Format format, const void* tensor, std::int64_t first, std::int64_t count,
                             RowBuffer& buffer) {
  return load_row(format, tensor, first, count, buffer.values);
}
inline float* row_for_store(Format format, void* tensor, std::int64_t first, RowBuffer& buffer) {
  return row_for_store(format, tensor, first, buffer.values);
}

/// Calls f(at, n) for consecutive chunks of [0, count).
template <typename F>
void for_chunks(std::int64_t count, F&& f) {
  for (std::int64_t at = 0; at < count; at += kRowChunk) f(at, std::min(kRowChunk, count - at));
}

}  // namespace mixroof
