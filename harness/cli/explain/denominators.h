// Numbers of `mixroof explain denominators`: means over a window of unequal micro-batches (cases.md LS-6).
#pragma once

#include <cstdint>

#include "harness/cli/explain/workbench.h"

namespace mixroof::cli {

/// A micro-batch by its effective tokens, their mean loss in nats and their mean gradient. Without tokens the means are 0.
struct MicroBatchMeans {
  std::int64_t tokens = 0;
  double loss = 0, gradient = 0;
};

struct WindowMeans {
  double effective_tokens = 0;
  double loss_sum = 0;      // over effective tokens
  double loss = 0;          // loss_sum / effective_tokens; NaN without tokens
  double gradient = 0;
  double mean_of_means = 0;  // the mistake: mean of the losses of the micro-batches that have tokens
  bool applied = false;
};
WindowMeans average_window(Workbench& bench, const std::vector<MicroBatchMeans>& window);

}  // namespace mixroof::cli
