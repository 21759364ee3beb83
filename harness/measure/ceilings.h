// Ceilings of a backend, measured with all workers busy together and heated first: compute per path, and bandwidth per
// memory level and mix of reads and writes. To add one: a candidate in ceilings.cc; candidates with the same id compete
// and the fastest is kept.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/measure/sampler.h"
#include "harness/roofline/roofline.h"

namespace mixroof {

struct CeilingOptions {
  /// Wall time, set-up included. Below 4 s fewer matrix products are tried; the figures are then noisier, not others.
  double budget_s = 9.0;
  std::uint64_t seed = 1;
  std::function<bool()> stop = {};  // true ends after the current sample; ceilings that have samples are returned
};

/// Memory levels of a device with what they hold for all of its workers together, nearest first, without DRAM.
std::vector<MemoryLevel> memory_levels(const DeviceFacts& facts);

/// Bytes that all workers together walk over to measure a level: half of a private cache, a quarter of the outermost
/// one, and at least four times the outermost cache for DRAM. 0 when the level cannot be told from the one before it.
/// `level` counts into memory_levels(); its size stands for DRAM.
std::int64_t working_set_bytes(const std::vector<MemoryLevel>& levels, std::size_t level);

/// One way to reach a ceiling.
struct CeilingCandidate {
  Ceiling ceiling;      // without `measured`, and without `implementation` until it is opened where that is a choice
  std::string variant;  // among candidates of the same id: "m=512,n=512,k=512", "nontemporal"; empty for the plain one
  double work = 0;      // FLOPs or bytes of one repetition
  /// Builds what is timed and names the implementation. Error(out_of_memory) when it does not fit. The backend must
  /// outlive the subject.
  std::function<std::unique_ptr<Subject>(Ceiling& ceiling)> open;
};

/// Everything that measure_ceilings tries, of which nothing is set up yet; ids repeat.
std::vector<CeilingCandidate> ceiling_candidates(Backend& backend, const CeilingOptions& options = {});

/// Empty for backends that are no machine (reference). Set-up that does not fit memory leaves its ceiling out. Call
/// again later in a run and merge_best() the two.
std::vector<Ceiling> measure_ceilings(Backend& backend, const CeilingOptions& options = {});

}  // namespace mixroof
