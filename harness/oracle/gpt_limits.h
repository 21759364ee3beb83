// Limits of whole updates in a recipe: which yardstick stands for it, and the floors below which a yardstick says
// nothing.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "harness/numeric/recipe.h"
#include "harness/oracle/entry.h"

namespace mixroof {

/// Floors of the figures that can be near by luck, at the initial scale of the weights and with sharp (multiplied)
/// ones; 0: none is needed. Half of the worst over ten other seeds and two shapes (README of the oracle).
struct GptFloors {
  double loss_rel_diff = 0, grad_norm_rel_diff = 0, update_l2_rel = 0, moment_l2_rel = 0;
};

struct GptYardstick {
  std::string_view name;  // in the manifest, where "_scale_N" may follow: a fixed loss scale
  std::string_view recipe;
  GptFloors initial, sharp;
};
/// One row for each recipe that a yardstick stands for; of the FP32-master and FP8 families and of autocast.
std::span<const GptYardstick> gpt_yardsticks();

/// A yardstick of a variant, with the loss scale of its name (1 when it names none). Nothing when the variant has none.
struct StoredYardstick {
  std::string key;
  double loss_scale = 1;
  OracleEntry entry;
};
std::optional<StoredYardstick> find_yardstick(const OracleEntry& variant, std::string_view name);

/// A recipe of the build; null when it has none of this name.
const Recipe* recipe_or_null(std::string_view name);

}  // namespace mixroof
