// Plain intrinsics loops, written without any library: what our ceilings must not stay behind. AVX2 and AVX-512;
// callers check the processor.
#pragma once

#include <cstdint>

namespace mixroof::peers {

/// FLOPs of one iteration of both loops: 12 vectors of 8 or 16 floats, one multiply-add each.
inline constexpr std::int64_t kFmaFlopsAvx2 = 12 * 8 * 2;
inline constexpr std::int64_t kFmaFlopsAvx512 = 12 * 16 * 2;
void fma_avx2(std::int64_t iterations);
void fma_avx512(std::int64_t iterations);

/// fp32 streams over `count` values; arrays aligned to 64 bytes, `count` a multiple of 128. AVX2.
void read_avx2(const float* a, std::int64_t count);
void write_avx2(float* c, std::int64_t count);
void copy_avx2(const float* a, float* c, std::int64_t count);
void triad_avx2(const float* a, const float* b, float* c, std::int64_t count);
void write_nontemporal_avx2(float* c, std::int64_t count);
void copy_nontemporal_avx2(const float* a, float* c, std::int64_t count);
void triad_nontemporal_avx2(const float* a, const float* b, float* c, std::int64_t count);

}  // namespace mixroof::peers
