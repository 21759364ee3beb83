#include <immintrin.h>

#include "benches/peers/peer_loops.h"

namespace mixroof::peers {

__attribute__((target("avx2,fma"))) void fma_avx2(std::int64_t iterations) {
  const __m256 factor = _mm256_set1_ps(0.5f), addend = _mm256_set1_ps(0.25f);
  __m256 v[12];
  for (int i = 0; i < 12; ++i) v[i] = _mm256_set1_ps(static_cast<float>(i));
  for (std::int64_t step = 0; step < iterations; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) v[i] = _mm256_fmadd_ps(v[i], factor, addend);
  }
  for (int i = 0; i < 12; ++i) asm volatile("" : : "x"(v[i]));
}

__attribute__((target("avx512f"))) void fma_avx512(std::int64_t iterations) {
  const __m512 factor = _mm512_set1_ps(0.5f), addend = _mm512_set1_ps(0.25f);
  __m512 v[12];
  for (int i = 0; i < 12; ++i) v[i] = _mm512_set1_ps(static_cast<float>(i));
  for (std::int64_t step = 0; step < iterations; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) v[i] = _mm512_fmadd_ps(v[i], factor, addend);
  }
  for (int i = 0; i < 12; ++i) asm volatile("" : : "v"(v[i]));
}

}  // namespace mixroof::peers
