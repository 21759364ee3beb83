// Values that a Fill stands for, seeded: what checks, tuning and isolated timings give to a kernel.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/kernel.h"

namespace mixroof {

/// Largest number of distinct values that fill_values computes; longer operands repeat them. A prime, so that no row of a
/// matrix repeats the one before it.
inline constexpr std::int64_t kDistinctValues = 1048583;

/// Seed of one operand, from the seed a user gave, the problem and the operand's name.
std::uint64_t operand_seed(std::uint64_t seed, const Problem& problem, std::string_view operand);

/// min(count, kDistinctValues) values in double, not yet rounded to the operand's format; documents are never cut short,
/// since they depend on the row. `integers`: whole numbers in ±exact_limit where the Fill has one.
std::vector<double> fill_values(const Operand& operand, std::uint64_t seed, bool integers = false);

/// A control tensor in the middle of a healthy run (Fill::Kind::control).
std::vector<double> healthy_control();

}  // namespace mixroof
