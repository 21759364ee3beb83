// Initial parameters: the same fp32 values for every recipe of a run.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/program/model.h"

namespace mixroof {

/// Per parameter of parameter_specs(model), in its order: normal with the spec's mean and deviation (constant where the
/// deviation is 0), seeded by `seed` and the parameter's name.
std::vector<std::vector<float>> initial_parameters(const Model& model, std::uint64_t seed);

}  // namespace mixroof
