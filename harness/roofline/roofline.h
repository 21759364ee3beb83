// Points under roofs: the least time that ceilings allow for counted work, and how near a measured time came. Pure:
// counts and ceilings in, figures out.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/roofline/ceiling.h"

namespace mixroof {

/// What an op or a program has to do. FLOPs by the format they are booked under; bytes are compulsory (each operand
/// once).
struct Work {
  std::array<std::int64_t, kFormatCount> flops = {};
  std::int64_t bytes_read = 0;
  std::int64_t bytes_written = 0;
  bool emulated = false;  // stored as named, computed in fp32

  std::int64_t bytes() const { return bytes_read + bytes_written; }
};

/// Where the operands are when the clock starts. `cold`: nowhere but in DRAM. `hot`: in the nearest level that holds
/// them. `in_step`: as the running update left them, which no roof may assume to be farther than hot.
enum class CacheState : std::uint8_t { cold, hot, in_step };
std::string_view name(CacheState state);

/// A memory level between the workers and DRAM, with what it holds for all workers together.
struct MemoryLevel {
  std::string name;  // "L1", "L2", "L3", nearest first
  std::int64_t capacity_bytes = 0;
};

enum class Bound : std::uint8_t { compute, memory };
std::string_view name(Bound bound);

struct Roof {
  double time_s = 0;
  Bound bound = Bound::memory;
  std::vector<std::string> ceiling_ids;  // all that took part, compute first
};

/// A roof, or the reason why there is none (a ceiling is missing).
struct RoofResult {
  std::optional<Roof> roof;
  std::string reason;
};

struct Point {
  Roof roof;
  double fraction = 0;         // roof time ÷ measured time; never clipped
  bool above_ceiling = false;  // fraction > kAboveCeiling: the time, a count or a ceiling is wrong
};

inline constexpr double kAboveCeiling = 1.02;

class Roofline {
 public:
  /// `levels` nearest first, without DRAM; those without measured ceilings are passed over.
  Roofline(std::vector<Ceiling> ceilings, std::vector<MemoryLevel> levels);

  /// max(Σ FLOPs of a format ÷ its compute ceiling, bytes ÷ bandwidth ceiling). Work without FLOPs or without bytes has
  /// the roof of the other; work with neither takes no time.
  RoofResult roof(const Work& work, CacheState state) const;

  /// The point of a measured time, or nothing when there is no roof or the time is not above zero.
  std::optional<Point> point(const Work& work, CacheState state, double time_s) const;

  /// Least time of a whole update: `flops` of all its ops, `bytes` that the whole program must move from and to DRAM.
  RoofResult floor(const Work& update) const { return roof(update, CacheState::cold); }
  /// Sum of the ops' roof times (`roof_sum_s`); the reason of the first op without a roof.
  struct Sum {
    std::optional<double> time_s;
    std::string reason;
  };
  Sum roof_sum(const std::vector<Work>& ops, CacheState state) const;

  const std::vector<Ceiling>& ceilings() const { return ceilings_; }

 private:
  struct Bandwidth {
    double byte_per_s = 0;
    std::vector<std::string> ids;
  };
  /// For bytes of which `read_share` (0 … 1) are read: between the two measured mixes around it, linear in time per
  /// byte.
  std::optional<Bandwidth> bandwidth_of(std::string_view level, double read_share) const;
  /// Of the level the state implies and those farther away, the fastest: noise must not draw a near roof below a far
  /// one.
  std::optional<Bandwidth> bandwidth(const Work& work, CacheState state) const;

  std::vector<Ceiling> ceilings_;
  std::vector<MemoryLevel> levels_;
};

/// Share of the bytes of a mix that are read: read 1, triad 2/3, copy 1/2, write 0. Nothing for an unknown mix.
std::optional<double> read_share(std::string_view mix);

}  // namespace mixroof
