// Bytes of a program, from its tensors and their live ranges: what must be alive at once, where an arena packs it, and
// which op allocates and frees what when each tensor is an allocation of its own. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "harness/program/program.h"

namespace mixroof {

/// Where tensors come to be and end, per section and op. Persistent tensors and those that the host writes (tokens) live
/// throughout and appear nowhere here.
struct Lifetimes {
  struct AtOp {
    std::vector<TensorId> begin;  // before the op: its outputs that start a live range, and its workspace
    std::vector<TensorId> end;    // after the op
  };
  std::array<std::vector<AtOp>, kSectionCount> ops;
  std::vector<TensorId> end_of_window;  // copies made in the first micro-batch and read in the further ones
  std::vector<TensorId> throughout;
};
Lifetimes lifetimes(const Program& program);

/// Alignment of tensors in an arena.
inline constexpr std::int64_t kArenaAlignment = 64;

using BytesByClass = std::array<std::int64_t, kTensorClassCount>;

struct BytePlan {
  BytesByClass persistent = {};      // persistent tensors only
  std::int64_t persistent_total = 0;
  std::int64_t live_peak = 0;        // most bytes alive at once, everything included
  BytesByClass at_peak = {};
  Phase peak_phase = Phase::forward;
  std::string peak_op;
  std::int64_t activation_peak = 0;  // most bytes of activations at once
  std::int64_t workspace_peak = 0;   // largest workspace
  std::int64_t arena_bytes = 0;      // what packing needs, alignment included
  std::vector<std::int64_t> arena_offset;  // of each tensor
  struct Sample {
    Phase phase = Phase::forward;
    std::int64_t live = 0;
  };
  std::vector<Sample> timeline;      // after each op of the first micro-batch, then of the update
};
/// `storage_bytes` of a backend may differ from the formats' (the reference backend); the plan counts the formats'.
BytePlan plan_bytes(const Program& program);
/// BytePlan::live_peak alone, without packing an arena.
std::int64_t live_peak_bytes(const Program& program);

/// Bytes that an update must move from and to DRAM whatever the order of its ops: every persistent tensor is read and, when
/// it is changed, written once, and activations that outgrow the cache are written and read back. What the last-level cache
/// can hold across updates is taken off once. A lower bound, for floors. `plan` is that of the program.
struct DramTraffic {
  std::int64_t read = 0, written = 0;
};
DramTraffic dram_traffic(const Program& program, const BytePlan& plan, std::int64_t cache_bytes);

/// The largest micro-batch whose planned live peak fits into `memory_bytes`; 0 when not even one sequence fits.
/// `live_peak_of(micro_batch)` must not fall as the micro-batch grows. It is called a few times only where it grows by
/// about as much for each sequence: the next try is where the last growth would fill the memory.
template <typename F>
std::int64_t largest_micro_batch(std::int64_t memory_bytes, F&& live_peak_of) {
  constexpr int kGuesses = 12;  // then halving, which ends whatever the growth
  std::int64_t low = 0, high = std::int64_t{1} << 40;  // low fits, high does not
  std::int64_t last = 0, next = 1;
  double last_peak = 0;
  for (int tried = 0; high - low > 1; ++tried) {
    const std::int64_t exact_peak = live_peak_of(next);
    (exact_peak <= memory_bytes ? low : high) = next;
    const auto peak = static_cast<double>(exact_peak);
    const double growth = (peak - last_peak) / static_cast<double>(next - last);
    const double guess = growth > 0 ? static_cast<double>(next) + (static_cast<double>(memory_bytes) - peak) / growth : 0;
    last = next;
    last_peak = peak;
    const bool may_guess = tried < kGuesses && guess < static_cast<double>(high);
    next = may_guess ? static_cast<std::int64_t>(guess) : low + (high - low) / 2;
    next = std::clamp(next, low + 1, high - 1);
  }
  return low;
}

}  // namespace mixroof
