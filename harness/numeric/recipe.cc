// The recipe table. To add a recipe: one row; everything else is computed from it. Recommended recipes stand before
// diagnostic ones, which is the order of lists and of "all".
#include "harness/numeric/recipe.h"

#include <algorithm>
#include <array>
#include <string>

#include "harness/status.h"

namespace mixroof {

namespace {

constexpr Recipe kFp8Hybrid{
    .name = "fp8-hybrid",
    .summary = "bf16-master with the layers' products in FP8: E4M3 forward, E5M2 gradients, delayed scaling per tensor",
    .params = Format::bf16,
    .master = Format::fp32,
    .grads = Format::bf16,
    .moments = Format::fp32,
    .matmul_forward = Format::fp8_e4m3,
    .matmul_gradient = Format::fp8_e5m2,
    .between = Format::bf16,
    .stream = Format::bf16,
    .fp8 = Fp8Scaling::delayed};

/// A recipe that differs from `base` in its FP8 scaling alone.
constexpr Recipe vary(Recipe base, std::string_view name, std::string_view summary, Fp8Scaling scaling) {
  base.name = name;
  base.summary = summary;
  base.fp8 = scaling;
  base.variation = true;
  return base;
}

constexpr Recipe kRecipes[] = {
    {.name = "fp32",
     .summary = "FP32 everywhere: the reference of every comparison",
     .params = Format::fp32,
     .master = std::nullopt,
     .grads = Format::fp32,
     .moments = Format::fp32,
     .matmul_forward = Format::fp32,
     .matmul_gradient = Format::fp32,
     .between = Format::fp32,
     .stream = Format::fp32},
    {.name = "fp16-autocast",
     .summary = "FP32 parameters cast to FP16 for matrix products, dynamic loss scaling",
     .params = Format::fp32,
     .master = std::nullopt,
     .grads = Format::fp32,
     .moments = Format::fp32,
     .matmul_forward = Format::fp16,
     .matmul_gradient = Format::fp16,
     .between = Format::fp16,
     .stream = Format::fp32,
     .loss_scaling = LossScaling::dynamic},
    {.name = "fp16-master",
     .summary = "FP16 parameters and gradients beside an FP32 master copy, dynamic loss scaling",
     .params = Format::fp16,
     .master = Format::fp32,
     .grads = Format::fp16,
     .moments = Format::fp32,
     .matmul_forward = Format::fp16,
     .matmul_gradient = Format::fp16,
     .between = Format::fp16,
     .stream = Format::fp16,
     .loss_scaling = LossScaling::dynamic},
    {.name = "fp16-master-fp32grad",
     .summary = "fp16-master with FP32 weight gradients",
     .params = Format::fp16,
     .master = Format::fp32,
     .grads = Format::fp32,
     .moments = Format::fp32,
     .matmul_forward = Format::fp16,
     .matmul_gradient = Format::fp16,
     .between = Format::fp16,
     .stream = Format::fp16,
     .loss_scaling = LossScaling::dynamic,
     .variation = true},
    {.name = "bf16-autocast",
     .summary = "FP32 parameters cast to BF16 for matrix products",
     .params = Format::fp32,
     .master = std::nullopt,
     .grads = Format::fp32,
     .moments = Format::fp32,
     .matmul_forward = Format::bf16,
     .matmul_gradient = Format::bf16,
     .between = Format::bf16,
     .stream = Format::fp32},
    {.name = "bf16-master",
     .summary = "BF16 parameters and gradients beside an FP32 master copy",
     .params = Format::bf16,
     .master = Format::fp32,
     .grads = Format::bf16,
     .moments = Format::fp32,
     .matmul_forward = Format::bf16,
     .matmul_gradient = Format::bf16,
     .between = Format::bf16,
     .stream = Format::bf16},
    {.name = "bf16-master-fp32grad",
     .summary = "bf16-master with FP32 weight gradients",
     .params = Format::bf16,
     .master = Format::fp32,
     .grads = Format::fp32,
     .moments = Format::fp32,
     .matmul_forward = Format::bf16,
     .matmul_gradient = Format::bf16,
     .between = Format::bf16,
     .stream = Format::bf16,
     .variation = true},
    kFp8Hybrid,
    vary(kFp8Hybrid, "fp8-current", "fp8-hybrid with current scaling: each tensor's scale from its own values", Fp8Scaling::current),
    vary(kFp8Hybrid, "fp8-channel", "fp8-hybrid with one current scale per row or column along each product's reduction",
         Fp8Scaling::channel),
    vary(kFp8Hybrid, "fp8-block", "fp8-hybrid with one current scale per 128 values along each product's reduction",
         Fp8Scaling::block128),
    vary(kFp8Hybrid, "mxfp8", "fp8-hybrid with OCP microscaling: blocks of 32 values with E8M0 scales, rounded up",
         Fp8Scaling::mx32),
    {.name = "fp16-master-unscaled",
     .summary = "fp16-master without loss scaling",
     .params = Format::fp16,
     .master = Format::fp32,
     .grads = Format::fp16,
     .moments = Format::fp32,
     .matmul_forward = Format::fp16,
     .matmul_gradient = Format::fp16,
     .between = Format::fp16,
     .stream = Format::fp16,
     .diagnostic = true,
     .shows = "gradients below the smallest FP16 subnormal underflow to zero"},
    {.name = "fp16-nomaster",
     .summary = "FP16 parameters updated in place, without a master copy; FP32 moments",
     .params = Format::fp16,
     .master = std::nullopt,
     .grads = Format::fp16,
     .moments = Format::fp32,
     .matmul_forward = Format::fp16,
     .matmul_gradient = Format::fp16,
     .between = Format::fp16,
     .stream = Format::fp16,
     .loss_scaling = LossScaling::dynamic,
     .diagnostic = true,
     .shows = "updates below half a spacing are absorbed in 10 mantissa bits"},
    {.name = "bf16-nomaster",
     .summary = "BF16 parameters updated in place, without a master copy; FP32 moments",
     .params = Format::bf16,
     .master = std::nullopt,
     .grads = Format::bf16,
     .moments = Format::fp32,
     .matmul_forward = Format::bf16,
     .matmul_gradient = Format::bf16,
     .between = Format::bf16,
     .stream = Format::bf16,
     .diagnostic = true,
     .shows = "updates below half a spacing are absorbed in 7 mantissa bits"},
    {.name = "fp16-pure",
     .summary = "FP16 everywhere, moments too, without a master copy",
     .params = Format::fp16,
     .master = std::nullopt,
     .grads = Format::fp16,
     .moments = Format::fp16,
     .matmul_forward = Format::fp16,
     .matmul_gradient = Format::fp16,
     .between = Format::fp16,
     .stream = Format::fp16,
     .loss_scaling = LossScaling::dynamic,
     .diagnostic = true,
     .shows = "second moments underflow and small updates are absorbed in 10 mantissa bits"},
    {.name = "bf16-pure",
     .summary = "BF16 everywhere, moments too, without a master copy",
     .params = Format::bf16,
     .master = std::nullopt,
     .grads = Format::bf16,
     .moments = Format::bf16,
     .matmul_forward = Format::bf16,
     .matmul_gradient = Format::bf16,
     .between = Format::bf16,
     .stream = Format::bf16,
     .diagnostic = true,
     .shows = "updates below half a spacing are absorbed in 7 mantissa bits"},
};

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const Recipe& recipe : kRecipes) names.emplace_back(recipe.name);
  return names;
}

}  // namespace

int Recipe::bytes_per_parameter(bool fp32_window) const {
  const Format window_grads = fp32_window ? Format::fp32 : grads;
  return static_cast<int>(bytes_of(params) + (master ? bytes_of(*master) : 0) + bytes_of(window_grads) +
                          2 * bytes_of(moments));
}

std::string_view name(Fp8Scaling scaling) {
  switch (scaling) {
    case Fp8Scaling::none: return "none";
    case Fp8Scaling::delayed: return "delayed";
    case Fp8Scaling::current: return "current";
    case Fp8Scaling::channel: return "channel";
    case Fp8Scaling::block128: return "block128";
    case Fp8Scaling::mx32: return "mx32";
  }
  return "none";
}

std::span<const Recipe> all_recipes() { return kRecipes; }

const Recipe& find_recipe(std::string_view name) {
  for (const Recipe& recipe : kRecipes)
    if (recipe.name == name) return recipe;
  throw_unknown("recipe", name, recipe_names(), "mixroof list recipes");
}

std::vector<const Recipe*> parse_recipes(std::string_view list) {
  std::vector<const Recipe*> recipes;
  const auto add = [&](const Recipe& recipe) {
    if (std::find(recipes.begin(), recipes.end(), &recipe) != recipes.end())
      throw UsageError("recipe '" + std::string(recipe.name) + "' is given twice; name each recipe once");
    recipes.push_back(&recipe);
  };
  while (true) {
    const std::size_t comma = list.find(',');
    const std::string_view name = list.substr(0, comma);
    if (name.empty())
      throw UsageError("a recipe name is empty; give names separated by commas, main or all (mixroof list recipes)");
    if (name == "all" || name == "main") {
      for (const Recipe& recipe : kRecipes)
        if (name == "all" || !(recipe.diagnostic || recipe.variation)) add(recipe);
    } else {
      add(find_recipe(name));
    }
    if (comma == std::string_view::npos) return recipes;
    list.remove_prefix(comma + 1);
  }
}

}  // namespace mixroof
