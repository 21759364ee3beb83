// A run in one recipe judged as another: each yardstick sees roundings that are not its own, too many and too few.
#include "harness/oracle/gpt_compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/oracle/oracle_test_folder.h"

namespace mixroof {
namespace {

using testing::HasSubstr;

class JudgedAs : public testing::Test {
 protected:
  OracleRow judge(const char* recipe, const char* yardstick) {
    const std::unique_ptr<Backend> backend = make_cpu_backend(1);
    const StoredYardstick stored = find_yardstick(case_.entry, yardstick).value();
    const GptResult got = run_gpt(model_, variant_, find_recipe(recipe), *backend,
                                  {.loss_scale = find_recipe(recipe).loss_scaling == LossScaling::dynamic ? 256.0 : 1.0,
                                   .rehearse = true,
                                   .states = case_.states(),
                                   .evaluate_after = case_.evaluate_after()});
    for (const GptYardstick& row : gpt_yardsticks()) {
      if (row.name != yardstick) continue;
      Comparison comparison;
      compare_gpt_recipe(case_, got, truth_, stored, row.initial, comparison);
      return comparison.row("gpt", recipe);
    }
    throw std::logic_error("no such yardstick");
  }

  const OracleModel model_{own_oracle() + "/gpt/tiny_gpt2"};
  const OracleVariant variant_ = model_.variant("plain");
  const GptCase case_{.model = model_,
                      .variant = variant_,
                      .entry = OracleEntry(model_.file()).at("variants").at("plain"),
                      .tensors = gpt_tensors(model_)};
  const GptResult truth_ = run_gpt(model_, variant_, find_recipe("fp32"), *make_reference_backend(),
                                   {.states = case_.states(), .evaluate_after = case_.evaluate_after()});
};

TEST_F(JudgedAs, Itself_Passes) {
  EXPECT_EQ(judge("bf16-master", "bf16_master").verdict, OracleVerdict::pass);
  EXPECT_EQ(judge("fp16-master", "fp16_master").verdict, OracleVerdict::pass);
  EXPECT_EQ(judge("fp8-hybrid", "fp8_hybrid_current").verdict, OracleVerdict::pass);
  EXPECT_EQ(judge("mxfp8", "mxfp8").verdict, OracleVerdict::pass);
}

TEST_F(JudgedAs, AMoreExactRecipe_HasErrorsThatAreTooSmall) {
  for (const auto& [recipe, yardstick] :
       {std::pair{"fp32", "bf16_master"}, std::pair{"fp32", "fp16_master"}, std::pair{"fp16-master", "bf16_master"},
        std::pair{"bf16-master", "fp8_hybrid_current"}, std::pair{"bf16-master", "mxfp8"}}) {
    const OracleRow row = judge(recipe, yardstick);
    EXPECT_EQ(row.verdict, OracleVerdict::fail) << recipe << " as " << yardstick;
    EXPECT_THAT(row.where, HasSubstr("a smaller error than the recipe's roundings make"));
  }
}

TEST_F(JudgedAs, ACoarserRecipe_HasErrorsThatAreTooLarge) {
  for (const auto& [recipe, yardstick] :
       {std::pair{"bf16-master", "fp16_master"}, std::pair{"fp8-hybrid", "bf16_master"}}) {
    const OracleRow row = judge(recipe, yardstick);
    EXPECT_EQ(row.verdict, OracleVerdict::fail) << recipe << " as " << yardstick;
  }
}

TEST(GptYardsticks, ALossScaleInTheName_IsTaken) {
  const OracleModel model(own_oracle() + "/gpt/tiny_gpt2");
  const OracleEntry variant = OracleEntry(model.file()).at("variants").at("plain");
  EXPECT_EQ(find_yardstick(variant, "fp16_master")->loss_scale, 256);
  EXPECT_EQ(find_yardstick(variant, "bf16_master")->loss_scale, 1);
  EXPECT_FALSE(find_yardstick(variant, "fp16_autocast").has_value());
}

}  // namespace
}  // namespace mixroof
