#include "harness/numeric/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "harness/status.h"

namespace mixroof {
namespace {

using testing::HasSubstr;

std::vector<std::string> names(const std::vector<const Recipe*>& recipes) {
  std::vector<std::string> result;
  for (const Recipe* recipe : recipes) result.emplace_back(recipe->name);
  return result;
}

std::string usage_error(const std::string& list) {
  try {
    parse_recipes(list);
  } catch (const UsageError& error) {
    return error.what();
  }
  return {};
}

TEST(Recipe, BytesPerParameter_AreThoseOfTheDesign) {
  struct Bytes {
    int one_micro_batch, fp32_window;
  };
  // params + master + grads + two moments; a window of several micro-batches keeps 16-bit gradients as fp32.
  const std::map<std::string_view, Bytes> expected{
      {"fp32", {4 + 0 + 4 + 8, 16}},          {"fp16-autocast", {4 + 0 + 4 + 8, 16}},
      {"fp16-master", {2 + 4 + 2 + 8, 18}},   {"bf16-autocast", {4 + 0 + 4 + 8, 16}},
      {"bf16-master", {2 + 4 + 2 + 8, 18}},   {"fp8-hybrid", {2 + 4 + 2 + 8, 18}},
      {"fp16-pure", {2 + 0 + 2 + 2 * 2, 10}}, {"bf16-pure", {2 + 0 + 2 + 2 * 2, 10}},
      {"fp16-nomaster", {2 + 0 + 2 + 8, 14}}, {"bf16-nomaster", {2 + 0 + 2 + 8, 14}},
      {"fp16-master-fp32grad", {2 + 4 + 4 + 8, 18}}, {"bf16-master-fp32grad", {2 + 4 + 4 + 8, 18}},
      {"fp16-master-unscaled", {2 + 4 + 2 + 8, 18}},
  };
  for (const auto& [name, bytes] : expected) {
    EXPECT_EQ(find_recipe(name).bytes_per_parameter(), bytes.one_micro_batch) << name;
    EXPECT_EQ(find_recipe(name).bytes_per_parameter(true), bytes.fp32_window) << name;
  }
}

TEST(Recipe, LossScaling_GoesWithFp16_ButForTheOneThatShowsItsAbsence) {
  for (const Recipe& recipe : all_recipes())
    EXPECT_EQ(recipe.loss_scaling == LossScaling::dynamic,
              recipe.matmul_forward == Format::fp16 && recipe.name != "fp16-master-unscaled")
        << recipe.name;
}

TEST(Recipe, Families_KeepTheirFormatsBetweenOps) {
  for (const Recipe& recipe : all_recipes()) {
    SCOPED_TRACE(recipe.name);
    if (recipe.casts_weights()) {  // autocast: 16-bit products between an fp32 residual stream
      EXPECT_EQ(recipe.stream, Format::fp32);
      EXPECT_EQ(recipe.between, recipe.matmul_forward);
    } else {
      EXPECT_EQ(recipe.stream, recipe.params);
      EXPECT_EQ(recipe.between, recipe.params);
    }
    EXPECT_EQ(recipe.uses_fp8(), is_fp8(recipe.matmul_forward));
    EXPECT_EQ(recipe.uses_fp8(), is_fp8(recipe.matmul_gradient));
    EXPECT_TRUE(recipe.uses_fp8() || recipe.matmul_forward == recipe.matmul_gradient);
    EXPECT_TRUE(!recipe.master || bytes_of(*recipe.master) > bytes_of(recipe.params));
  }
}

TEST(Recipe, Fp8Hybrid_IsE4m3ForwardAndE5m2ForGradients) {
  const Recipe& recipe = find_recipe("fp8-hybrid");
  EXPECT_EQ(recipe.matmul_forward, Format::fp8_e4m3);
  EXPECT_EQ(recipe.matmul_gradient, Format::fp8_e5m2);
  EXPECT_EQ(recipe.fp8, Fp8Scaling::delayed);
  EXPECT_EQ(recipe.between, Format::bf16);
}

TEST(Recipe, Rows_AreNamedOnceAndDescribed_DiagnosticOnesLastWithTheLossTheyShow) {
  std::set<std::string_view> seen;
  bool diagnostic_before = false;
  for (const Recipe& recipe : all_recipes()) {
    SCOPED_TRACE(recipe.name);
    EXPECT_TRUE(seen.insert(recipe.name).second);
    EXPECT_FALSE(recipe.summary.empty());
    EXPECT_EQ(recipe.diagnostic, !recipe.shows.empty());
    EXPECT_TRUE(recipe.diagnostic || !diagnostic_before);
    diagnostic_before = recipe.diagnostic;
  }
}

TEST(ParseRecipes, NamesInTheOrderGiven) {
  EXPECT_EQ(names(parse_recipes("bf16-master,fp32")), (std::vector<std::string>{"bf16-master", "fp32"}));
  EXPECT_EQ(names(parse_recipes("fp32")), std::vector<std::string>{"fp32"});
}

TEST(ParseRecipes, All_IsTheWholeTable) {
  const auto recipes = parse_recipes("all");
  ASSERT_EQ(recipes.size(), all_recipes().size());
  for (std::size_t i = 0; i < recipes.size(); ++i) EXPECT_EQ(recipes[i], &all_recipes()[i]);
}

TEST(ParseRecipes, Main_LeavesOutDiagnosticOnesAndVariations_AndMayBeExtended) {
  EXPECT_EQ(names(parse_recipes("main,bf16-pure")),
            (std::vector<std::string>{"fp32", "fp16-autocast", "fp16-master", "bf16-autocast", "bf16-master", "fp8-hybrid", "bf16-pure"}));
}

TEST(ParseRecipes, UnknownName_IsRefusedWithNearNames) {
  EXPECT_THAT(usage_error("bf16-mastr"), HasSubstr("unknown recipe 'bf16-mastr'; did you mean bf16-master"));
  EXPECT_THAT(usage_error("fp32, fp16-master"), HasSubstr("' fp16-master'"));  // blanks are not trimmed, and visible
}

TEST(ParseRecipes, EmptyAndRepeatedNames_AreRefused) {
  EXPECT_THAT(usage_error(""), HasSubstr("empty"));
  EXPECT_THAT(usage_error("fp32,"), HasSubstr("empty"));
  EXPECT_THAT(usage_error(",fp32"), HasSubstr("empty"));
  EXPECT_THAT(usage_error("fp32,bf16-pure,fp32"), HasSubstr("'fp32' is given twice"));
  EXPECT_THAT(usage_error("main,fp32"), HasSubstr("'fp32' is given twice"));
}

}  // namespace
}  // namespace mixroof
