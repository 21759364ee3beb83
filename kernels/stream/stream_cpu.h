// The CPU's streams over one thread's slice of the arrays: what the kernel's plan gives to each worker, and what
// ceilings repeat inside one parallel region where a working set is too small for a region of its own.
#pragma once

#include <cstdint>
#include <string_view>

namespace mixroof {

enum class StreamOp : std::uint8_t { read, copy, scale, add, triad, write };
/// Throws UsageError with the nearest names.
StreamOp find_stream_op(std::string_view variant);

/// One stream over `count` values on the calling thread. Arrays that `op` does not use may be null. `nontemporal`
/// stores past the cache and makes them visible before it returns. `passes` repeats the same stream. Returns the sum
/// for read, else 0.
float stream_slice(StreamOp op, bool nontemporal, const float* a, const float* b, float* c, std::int64_t count,
                   std::int64_t passes = 1);

/// Instruction path of stream_slice on this processor.
std::string_view stream_path();

/// Workspace of read: one partial sum per worker, a cache line apart.
inline constexpr std::int64_t kStreamPartialBytes = 64;

}  // namespace mixroof
