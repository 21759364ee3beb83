// Ceilings: rates that a machine can reach, measured in the same run as the points that are set against them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/numeric/format.h"
#include "harness/stats/summary.h"

namespace mixroof {

enum class CeilingKind : std::uint8_t { compute, bandwidth };
std::string_view name(CeilingKind kind);

/// Names of memory levels, nearest first: "L1", "L2", "L3", "DRAM".
inline constexpr std::string_view kDramLevel = "DRAM";

struct Ceiling {
  std::string id;  // "compute/fp32", "compute/fp32_matmul", "bandwidth/DRAM/triad"
  CeilingKind kind = CeilingKind::compute;
  std::string path;                    // compute: "fp32", "fp32_matmul", "bf16"; bandwidth: "memory"
  std::string level = {};              // bandwidth only
  std::string mix = {};                // bandwidth only: read, write, copy, triad
  std::string shape = {};              // what was run: "m=1024,n=1024,k=1024"
  std::int64_t working_set_bytes = 0;  // of all workers together
  bool sustained = true;               // all workers busy together, after heating
  Summary measured = {};               // samples are rates, in unit()
  std::string implementation = {};

  std::string_view unit() const { return kind == CeilingKind::compute ? "flop_per_s" : "byte_per_s"; }
  /// The rate a roof is drawn with: the median, NaN without a sample.
  double rate() const { return measured.median; }
};

/// Keeps, for each id, the ceiling with the higher rate; ids that are new are added. Ceilings are measured again
/// through a run, since a shared machine is never slow for ever and never faster than it is.
void merge_best(std::vector<Ceiling>& kept, std::span<const Ceiling> measured_again);

/// The path whose ceilings bound the FLOPs of `format`: its own, or fp32 where the format was only stored and rounded.
std::string_view compute_path(Format format, bool emulated);

/// Fastest compute ceiling of a path: the register kernel ("fp32") or the best matrix product ("fp32_matmul"). Null
/// when none was measured.
const Ceiling* best_compute(std::span<const Ceiling> ceilings, std::string_view path);

}  // namespace mixroof
