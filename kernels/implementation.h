// Entries of implementation tables that kernels share. A kernel with conditions of its own, or with several plans,
// writes its own functions.
#pragma once

#include <memory>

#include "kernels/kernel.h"

namespace mixroof {

/// Implementation::supports of one that runs every problem of its kernel.
inline Support supports_all(const Problem&, const DeviceFacts&) { return {}; }

/// Implementation::prepare of a plan that is made of the problem alone.
template <typename P>
std::unique_ptr<Plan> prepare_plan(const Problem& problem, const PrepareContext&) {
  return std::make_unique<P>(problem);
}

}  // namespace mixroof
