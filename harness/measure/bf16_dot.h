// The rate of BF16 dot products with fp32 accumulation (vdpbf16ps), from registers.
#pragma once

#include <cstdint>

namespace mixroof {

/// FLOPs of one iteration: 16 independent accumulators of 16 lanes with two multiply-adds each.
inline constexpr std::int64_t kBf16DotFlops = 16 * 16 * 4;

/// Runs on the calling thread. Only where DeviceFacts has the path avx512_bf16; an illegal instruction elsewhere.
void run_bf16_dot(std::int64_t iterations);

}  // namespace mixroof
