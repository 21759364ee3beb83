// What one outlier costs the other values of a tensor, by how many of them share its scale.
#pragma once

#include <string>
#include <vector>

#include "harness/cli/explain/workbench.h"

namespace mixroof::cli {

struct SharedScale {
  std::string text;       // who shares a scale
  std::int64_t scales;    // of the tensor
  double relative_error;  // L2, of all values but the outlier
  double flushed;         // values that became zero
};

/// 8 x 256 normal values in E4M3, one of them replaced by `outlier`: with a scale per tensor, row, block of 128 and, by
/// MXFP8, block of 32.
std::vector<SharedScale> share_scales(Workbench& bench, double outlier);

}  // namespace mixroof::cli
