#include <immintrin.h>

#include "benches/peers/peer_loops.h"

#define MIXROOF_PEER __attribute__((target("avx2,fma")))

namespace mixroof::peers {

MIXROOF_PEER void read_avx2(const float* a, std::int64_t count) {
  __m256 sums[8];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  for (std::int64_t i = 0; i < count; i += 64) {
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) sums[k] = _mm256_add_ps(sums[k], _mm256_load_ps(a + i + 8 * k));
  }
  for (__m256& sum : sums) asm volatile("" : : "x"(sum));
}

MIXROOF_PEER void write_avx2(float* c, std::int64_t count) {
  const __m256 one = _mm256_set1_ps(1.0f);
  for (std::int64_t i = 0; i < count; i += 32) {
    _mm256_store_ps(c + i, one);
    _mm256_store_ps(c + i + 8, one);
    _mm256_store_ps(c + i + 16, one);
    _mm256_store_ps(c + i + 24, one);
  }
}

MIXROOF_PEER void copy_avx2(const float* a, float* c, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 16) {
    const __m256 x = _mm256_load_ps(a + i), y = _mm256_load_ps(a + i + 8);
    _mm256_store_ps(c + i, x);
    _mm256_store_ps(c + i + 8, y);
  }
}

MIXROOF_PEER void triad_avx2(const float* a, const float* b, float* c, std::int64_t count) {
  const __m256 factor = _mm256_set1_ps(3.0f);
  for (std::int64_t i = 0; i < count; i += 16) {
    _mm256_store_ps(c + i, _mm256_fmadd_ps(factor, _mm256_load_ps(b + i), _mm256_load_ps(a + i)));
    _mm256_store_ps(c + i + 8, _mm256_fmadd_ps(factor, _mm256_load_ps(b + i + 8), _mm256_load_ps(a + i + 8)));
  }
}

MIXROOF_PEER void write_nontemporal_avx2(float* c, std::int64_t count) {
  const __m256 one = _mm256_set1_ps(1.0f);
  for (std::int64_t i = 0; i < count; i += 16) {
    _mm256_stream_ps(c + i, one);
    _mm256_stream_ps(c + i + 8, one);
  }
  _mm_sfence();
}

MIXROOF_PEER void copy_nontemporal_avx2(const float* a, float* c, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 16) {
    _mm256_stream_ps(c + i, _mm256_load_ps(a + i));
    _mm256_stream_ps(c + i + 8, _mm256_load_ps(a + i + 8));
  }
  _mm_sfence();
}

MIXROOF_PEER void triad_nontemporal_avx2(const float* a, const float* b, float* c, std::int64_t count) {
  const __m256 factor = _mm256_set1_ps(3.0f);
  for (std::int64_t i = 0; i < count; i += 16) {
    _mm256_stream_ps(c + i, _mm256_fmadd_ps(factor, _mm256_load_ps(b + i), _mm256_load_ps(a + i)));
    _mm256_stream_ps(c + i + 8, _mm256_fmadd_ps(factor, _mm256_load_ps(b + i + 8), _mm256_load_ps(a + i + 8)));
  }
  _mm_sfence();
}

}  // namespace mixroof::peers
