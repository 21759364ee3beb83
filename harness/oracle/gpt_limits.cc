#include "harness/oracle/gpt_limits.h"

#include <charconv>

namespace mixroof {
namespace {

constexpr GptFloors kBf16 = {.loss_rel_diff = 2e-4, .grad_norm_rel_diff = 1.2e-3};
constexpr GptFloors kBf16Sharp = {.loss_rel_diff = 6e-4, .grad_norm_rel_diff = 2.5e-3};
constexpr GptFloors kFp16 = {
    .loss_rel_diff = 7e-5, .grad_norm_rel_diff = 3e-4, .update_l2_rel = 0.025, .moment_l2_rel = 2.5e-3};
constexpr GptFloors kFp16Sharp = {
    .loss_rel_diff = 1.2e-4, .grad_norm_rel_diff = 5e-4, .update_l2_rel = 0.035, .moment_l2_rel = 2.5e-3};
constexpr GptFloors kFp8 = {.loss_rel_diff = 1.2e-3, .grad_norm_rel_diff = 6e-3};
constexpr GptFloors kFp8Sharp = {.loss_rel_diff = 7e-3, .grad_norm_rel_diff = 2.5e-2};

/// Autocast has no floors of its own: those of its format's masters.
constexpr GptYardstick kYardsticks[] = {
    {"bf16_autocast", "bf16-autocast", kBf16, kBf16Sharp},  {"fp16_autocast", "fp16-autocast", kFp16, kFp16Sharp},
    {"bf16_master", "bf16-master", kBf16, kBf16Sharp},      {"fp16_master", "fp16-master", kFp16, kFp16Sharp},
    {"fp8_hybrid_current", "fp8-hybrid", kFp8, kFp8Sharp},  // with a history that has seen the window
    {"fp8_hybrid_current", "fp8-current", kFp8, kFp8Sharp}, {"fp8_block", "fp8-block", kFp8, kFp8Sharp},
    {"fp8_block", "fp8-channel", kFp8, kFp8Sharp},          {"mxfp8", "mxfp8", kFp8, kFp8Sharp},
};

}  // namespace

std::span<const GptYardstick> gpt_yardsticks() { return kYardsticks; }

std::optional<StoredYardstick> find_yardstick(const OracleEntry& variant, std::string_view name) {
  constexpr std::string_view kScale = "_scale_";
  if (!variant.has("yardsticks")) return std::nullopt;
  const OracleEntry yardsticks = variant.at("yardsticks");
  for (const std::string& key : yardsticks.keys()) {
    if (!std::string_view(key).starts_with(name)) continue;
    const std::string_view rest = std::string_view(key).substr(name.size());
    if (!rest.empty() && !rest.starts_with(kScale)) continue;
    StoredYardstick found{.key = key, .loss_scale = 1, .entry = yardsticks.at(key)};
    if (!rest.empty()) {
      const std::string_view digits = rest.substr(kScale.size());
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), found.loss_scale);
      if (error != std::errc() || end != digits.data() + digits.size() || !(found.loss_scale > 0))
        found.entry.refuse("names no loss scale after _scale_");
    }
    return found;
  }
  return std::nullopt;
}

const Recipe* recipe_or_null(std::string_view name) {
  for (const Recipe& recipe : all_recipes())
    if (recipe.name == name) return &recipe;
  return nullptr;
}

}  // namespace mixroof
