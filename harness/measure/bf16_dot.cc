#include "harness/measure/bf16_dot.h"

#include <immintrin.h>

namespace mixroof {

#define MIXROOF_BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

MIXROOF_BF16_TARGET void run_bf16_dot(std::int64_t iterations) {
  constexpr int kAccumulators = 16;
  constexpr int kTwoOnes = 0x3F803F80;  // bf16 1.0, twice
  const __m512bh ones = reinterpret_cast<__m512bh>(_mm512_set1_epi32(kTwoOnes));
  __m512 sums[kAccumulators];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 16
    for (int a = 0; a < kAccumulators; ++a) sums[a] = _mm512_dpbf16_ps(sums[a], ones, ones);
  }
  // The compiler must believe that the sums are needed.
  for (__m512& sum : sums) asm volatile("" : : "v"(sum));
}

}  // namespace mixroof
