// Numbers of `mixroof explain absorption`: updates too small for the spacing of a 16-bit weight (cases.md NUM-3).
#pragma once

#include "harness/cli/explain/workbench.h"

namespace mixroof::cli {

/// A weight after each of several equal AdamW updates: kept in 16 bits only, and with an FP32 master and its 16-bit copy.
struct RepeatedUpdate {
  Values low_only, master, copy_of_master;
};
RepeatedUpdate repeat_update(Workbench& bench, Format low, double weight, double update, int updates);

/// What AdamW's own factors do when they meet a format: weight 1 and second moment 1 after `updates` updates with zero
/// gradient, whose decay factor is 1 - 1e-6 and whose beta2 is 0.999; weights and moments are kept in `format`.
struct SlowDecay {
  double weight, moment2;
};
SlowDecay decay_slowly(Workbench& bench, Format format, int updates);

}  // namespace mixroof::cli
