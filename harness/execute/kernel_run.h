// One run of a kernel on given values: what probes, worked examples and tests of kernels are made of.
#pragma once

#include <vector>

#include "harness/backend/backend.h"
#include "kernels/kernel.h"

namespace mixroof {

/// Puts `inputs[i]` into operand i (rounded once to its format; write-only operands may be empty), runs `plan` once and
/// returns what every operand holds afterwards, in operands() order. Blocking; memory comes from the backend.
std::vector<std::vector<double>> run_on(Backend& backend, const Kernel& kernel, const Problem& problem, const Plan& plan,
                                        const std::vector<std::vector<double>>& inputs);

/// The same with the backend's own choice of implementation. Throws Error(not_supported) with the reason.
std::vector<std::vector<double>> run_on(Backend& backend, const Kernel& kernel, const Problem& problem,
                                        const std::vector<std::vector<double>>& inputs);

}  // namespace mixroof
