// Matrix products of libraries. Each is tried against the double-precision reference once per process before it may
// compete: a library can be older than the processor, or faulty on it. To add one, write its file with a table and name
// it here and in matmul_cpu.cc.
#pragma once

#include <span>

#include "kernels/kernel.h"

namespace mixroof {

/// OpenBLAS with OpenMP, opened at run time: fp32.
std::span<const Implementation> matmul_openblas();
/// oneDNN, when it was built in: fp32, and bf16 on processors with instructions for it. Empty otherwise.
std::span<const Implementation> matmul_onednn();

using MatmulPrepare = std::unique_ptr<Plan> (*)(const Problem& problem, const PrepareContext& context);

/// Runs products of all variants, with tails and with all workers, in these formats and compares every element with the
/// reference. A "no" names the library, the product and the element; never throws. Always "no" in sanitizer builds,
/// which see neither into the library nor into its threads.
Support verify_library(std::string_view library, MatmulPrepare prepare, const DeviceFacts& facts, Format inputs,
                       Format output);

}  // namespace mixroof
