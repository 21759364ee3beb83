// What quantizing to FP8 cost in values, read from the counts that its kernels keep.
#pragma once

#include <optional>

#include "harness/execute/execution.h"

namespace mixroof {

/// Since the start of training, over all FP8 tensors: values quantized, values that saturated, values that became zero
/// though they were not. Nothing without FP8.
struct Fp8Counts {
  double quantized = 0, saturated = 0, flushed = 0;
};
std::optional<Fp8Counts> read_fp8_counts(const Execution& execution);

}  // namespace mixroof
