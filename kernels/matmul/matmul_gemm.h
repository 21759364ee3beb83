// The project's own matrix product on the CPU: operands of any format are converted to fp32 while they are packed, so
// every format runs at fp32 multiply-add speed; sums stay in fp32 blocks until one final rounding.
//
// Loops, from outside in: a grid of parts (one per worker, no sharing), blocks of block_m x block_n outputs held in
// fp32, block_k of k, panels of panel_m rows, register tiles (6x16 on AVX2, 14x32 on AVX-512, 6x2 elsewhere). The order
// of every sum depends on k alone: results are the same bits for any number of workers. To add a format, teach
// harness/numeric/codec.h; to add an operand layout, GemmMatrix.
#pragma once

#include <cstdint>
#include <string>

#include "harness/numeric/format.h"

namespace mixroof {

/// An input: element (i, p), i along m or n and p along k, is at i * stride + p when k-major, else at p * stride + i.
struct GemmMatrix {
  const void* data = nullptr;
  Format format = Format::fp32;
  std::int64_t stride = 0;
  bool is_k_major = true;
  /// Block scales, multiplied into the values while they are packed; none when block is 0. The scale of element (i, p) is at
  /// i * scale_stride + p / block when k-major, else at p / block * scale_stride + i.
  std::int64_t block = 0, scale_stride = 0;
  const void* scale_inv = nullptr;
  Format scale_format = Format::fp32;
};

/// c[m,n] = (a · b) / scale_a / scale_b + bias[n] + (accumulate ? c : 0), rounded once to c_format. Pointers need only
/// be aligned to their elements; c is row-major without gaps.
struct GemmTask {
  std::int64_t m = 0, n = 0, k = 0;
  GemmMatrix a, b;
  const void* bias = nullptr;  // none when null
  Format bias_format = Format::fp32;
  const float* scale_a = nullptr;  // both or none
  const float* scale_b = nullptr;
  void* c = nullptr;
  Format c_format = Format::fp32;
  bool accumulate = false;
};

/// Sizes that a shape and a number of workers lead to; pure and the same on every machine.
struct GemmBlocking {
  std::int64_t parts_m = 0, parts_n = 0;  // grid of parts
  std::int64_t part_m = 0, part_n = 0;    // outputs of one part; the last ones may be smaller
  std::int64_t block_m = 0, block_n = 0;  // outputs held in fp32
  std::int64_t panel_m = 0, block_k = 0;  // packed piece of a: panel_m x block_k
  std::int64_t parts() const { return parts_m * parts_n; }
};
GemmBlocking gemm_blocking(std::int64_t m, std::int64_t n, std::int64_t k, int threads);
std::int64_t gemm_workspace_bytes(const GemmBlocking& blocking);

/// `workspace` is 64-byte aligned and holds gemm_workspace_bytes.
void gemm(const GemmTask& task, const GemmBlocking& blocking, void* workspace);

/// "avx2 6x16": what gemm runs on this processor.
std::string gemm_path();

}  // namespace mixroof
