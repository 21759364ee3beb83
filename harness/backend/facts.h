// What a device is (facts, measured or read) and what it wants from a program (target, pure data).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "harness/numeric/format.h"

namespace mixroof {

/// Class of a tensor's bytes (the vocabulary of the memory ledger and of the result document).
enum class TensorClass : std::uint8_t {
  param, master, grad, moment1, moment2, scaling_state, compute_copy, activation, gradient_activation, workspace, tokens
};
inline constexpr int kTensorClassCount = 11;
std::string_view name(TensorClass tensor_class);

struct Cache {
  int level = 0;
  std::int64_t bytes = 0;       // of one instance
  int shared_by_cores = 1;
};

struct DeviceFacts {
  std::string backend;          // cpu, reference, cuda
  std::string name;             // as the vendor prints it
  std::string arch;             // "x86-64 avx2", "sm_90"
  std::vector<std::string> paths;  // instruction paths that may be used, best first: avx512_bf16, avx512, avx2, sse4, scalar
  int units = 1;                // worker threads (CPU) or multiprocessors (GPU) that this run uses
  std::int64_t memory_bytes = 0;
  std::vector<Cache> caches;
  std::int64_t last_level_cache_bytes() const;
  std::int64_t cache_bytes(int level) const;  // 0 when unknown
  bool has_path(std::string_view path) const;
  /// Whether matrix products of this input format have instructions of their own; if not they are emulated in fp32.
  bool has_arithmetic(Format format) const;
};

/// What lowering needs to know of a device: data, so that a program for one machine can be planned on another.
struct Target {
  std::string backend = "cpu";
  int threads = 1;              // parallel workers, for workspaces that are kept per worker
  std::array<std::int64_t, 3> fp8_multiples = {1, 1, 1};  // of m, n and k that FP8 products must be padded to
};

}  // namespace mixroof
