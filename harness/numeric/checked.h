// 64-bit counts that refuse to overflow.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "harness/status.h"

namespace mixroof {

/// Product of counts; throws Error(out_of_memory) past 2^63 - 1, since no machine holds that many bytes.
inline std::int64_t checked_product(std::initializer_list<std::int64_t> factors) {
  std::int64_t product = 1;
  for (const std::int64_t factor : factors)
    if (__builtin_mul_overflow(product, factor, &product))
      throw Error(Status::out_of_memory, "a count passes 2^63 - 1; choose a smaller shape");
  return product;
}

inline std::int64_t checked_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum))
    throw Error(Status::out_of_memory, "a count passes 2^63 - 1; choose a smaller shape");
  return sum;
}

}  // namespace mixroof
