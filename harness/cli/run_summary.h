// What a person reads at the end of a run, from the result document alone.
#pragma once

#include <string>

#include "harness/result/document.h"

namespace mixroof::cli {

/// Headline, recipes, kernels that took most time, ceilings. `width` of the terminal, 0: unlimited.
std::string run_summary(const Json& document, int width);

}  // namespace mixroof::cli
