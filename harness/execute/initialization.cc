#include "harness/execute/initialization.h"

#include <random>

#include "harness/numeric/checked.h"

namespace mixroof {

std::vector<std::vector<float>> initial_parameters(const Model& model, std::uint64_t seed) {
  std::vector<std::vector<float>> parameters;
  for (const ParameterSpec& spec : parameter_specs(model)) {
    std::int64_t count = 1;
    for (const std::int64_t size : spec.shape) count = checked_product({count, size});
    std::vector<float> values(static_cast<std::size_t>(count), static_cast<float>(spec.init_mean));
    if (spec.init_stddev > 0) {
      std::seed_seq seeds(spec.name.begin(), spec.name.end());
      std::vector<std::uint32_t> words(2);
      seeds.generate(words.begin(), words.end());
      std::mt19937_64 random(seed ^ (std::uint64_t{words[0]} << 32 | words[1]));
      std::normal_distribution<float> normal(static_cast<float>(spec.init_mean), static_cast<float>(spec.init_stddev));
      for (float& value : values) value = normal(random);
    }
    parameters.push_back(std::move(values));
  }
  return parameters;
}

}  // namespace mixroof
