#include "harness/backend/facts.h"

#include <algorithm>

namespace mixroof {

std::string_view name(TensorClass tensor_class) {
  switch (tensor_class) {
    case TensorClass::param: return "param";
    case TensorClass::master: return "master";
    case TensorClass::grad: return "grad";
    case TensorClass::moment1: return "moment1";
    case TensorClass::moment2: return "moment2";
    case TensorClass::scaling_state: return "scaling_state";
    case TensorClass::compute_copy: return "compute_copy";
    case TensorClass::activation: return "activation";
    case TensorClass::gradient_activation: return "gradient_activation";
    case TensorClass::workspace: return "workspace";
    case TensorClass::tokens: return "tokens";
  }
  return "workspace";
}

std::int64_t DeviceFacts::last_level_cache_bytes() const {
  std::int64_t bytes = 0;
  int level = 0;
  for (const Cache& cache : caches)
    if (cache.level > level) level = cache.level, bytes = cache.bytes;
  return bytes;
}

std::int64_t DeviceFacts::cache_bytes(int level) const {
  for (const Cache& cache : caches)
    if (cache.level == level) return cache.bytes;
  return 0;
}

bool DeviceFacts::has_path(std::string_view path) const {
  return std::find(paths.begin(), paths.end(), path) != paths.end();
}

bool DeviceFacts::has_arithmetic(Format format) const {
  switch (format) {
    case Format::fp32:
    case Format::fp64: return true;
    case Format::bf16: return has_path("avx512_bf16");
    default: return false;
  }
}

}  // namespace mixroof
