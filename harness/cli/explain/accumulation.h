// Numbers of `mixroof explain accumulation`: sums of many terms in accumulators of different width.
#pragma once

#include "harness/cli/explain/workbench.h"

namespace mixroof::cli {

/// A dot product of `length` FP16 ones: by the matmul kernel, which accumulates in FP32, and term by term in FP16.
struct DotProduct {
  double matmul, in_fp16;
};
DotProduct dot_of_ones(Workbench& bench, int length);

/// One window of a small GPT-2 in bf16-master: relative L2 difference of its gradient from that of recipe fp32 when the
/// micro-batches accumulate in FP32, and in the BF16 gradients themselves.
struct WindowError {
  double in_fp32, in_bf16;
};
WindowError window_error(Workbench& bench, int micro_batches);

}  // namespace mixroof::cli
