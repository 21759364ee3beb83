// Mutants that these tests catch: truncation instead of rounding; the last element left out; values shifted by one.
#include "kernels/cast/cast.h"

#include <bit>
#include <limits>

#include "kernels/kernel_test.h"

namespace mixroof {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

class Cast : public testing::Test {
 protected:
  CheckResult check(const Defect& defect) {
    return check_mutant(*backend_, cast_kernel(), cast_problem(1001, Format::fp32, Format::bf16), defect);
  }
  std::vector<double> cast(Format in, Format out, const std::vector<double>& values) {
    const auto count = static_cast<std::int64_t>(values.size());
    return run_on(*backend_, cast_kernel(), cast_problem(count, in, out), {values, {}})[1];
  }
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

TEST_F(Cast, EveryCase_IsExact_OnEveryTargetOfThisProcessor) { expect_all_cases_pass(cast_kernel(), *backend_, 70); }

TEST_F(Cast, EveryPairOfFormats_IsExact) {
  for (const Format in : {Format::fp32, Format::fp16, Format::bf16, Format::fp8_e4m3, Format::fp8_e5m2})
    for (const Format out :
         {Format::fp32, Format::tf32, Format::fp16, Format::bf16, Format::fp8_e4m3, Format::fp8_e5m2}) {
      const CheckResult result = check_kernel(cast_kernel(), cast_problem(2051, in, out), *backend_);
      EXPECT_TRUE(result.pass) << name(in) << " to " << name(out) << ": " << result.detail;
      EXPECT_EQ(result.elements, 2051);
    }
}

TEST_F(Cast, SpecialValues_FollowTheCodecPolicy) {
  // fp16: 65520 is the first value that rounds to infinity, 2^-25 the tie that goes to zero.
  EXPECT_EQ(cast(Format::fp32, Format::fp16, {65519, 65520, -kInf, 0x1p-25, 0x1.8p-25}),
            (std::vector<double>{65504, kInf, -kInf, 0, 0x1p-24}));
  EXPECT_TRUE(std::isnan(cast(Format::fp32, Format::bf16, {std::nan("")})[0]));
  // bf16 to FP8 saturates.
  EXPECT_EQ(cast(Format::bf16, Format::fp8_e4m3, {1e6, -kInf}), (std::vector<double>{448, -448}));
}

TEST(CastProblem, OnlyAutocastRecipesCast) {
  const auto problem = [](const char* recipe, std::int64_t role) {
    return cast_kernel().problem(find_recipe(recipe), {"cast", {{"role", role}, {"count", 9}}});
  };
  for (const Recipe& recipe : all_recipes())
    EXPECT_EQ(problem(std::string(recipe.name).c_str(), 0).has_value(), recipe.casts_weights()) << recipe.name;
  for (const std::int64_t role : {0, 1, 2})
    EXPECT_EQ(problem("bf16-autocast", role)->formats, (std::vector<Format>{Format::fp32, Format::bf16})) << role;
  EXPECT_THROW(problem("bf16-autocast", 3), UsageError);
  EXPECT_THROW(cast_problem(-1, Format::fp32, Format::bf16), UsageError);
}

TEST_F(Cast, FormatsWiderThanFp32_AreRefusedWithAReason) {
  const Support support = backend_->supports(cast_problem(4, Format::fp64, Format::fp16));
  EXPECT_FALSE(support.yes);
  EXPECT_NE(support.reason.find("fp64"), std::string::npos);
}

TEST(CastCost, CountsBytesAndNoFlops) {
  const Cost cost = cast_kernel().cost(cast_problem(1000, Format::fp32, Format::bf16));
  EXPECT_EQ(cost.bytes_read, 4000);
  EXPECT_EQ(cost.bytes_written, 2000);
  EXPECT_EQ(cost.total_useful_flops(), 0);
}

TEST_F(Cast, Mutant_Truncation_IsCaught) {
  EXPECT_FALSE(check([](const Plan&, const Launch& launch) {
                 for (int i = 0; i < 1001; ++i)
                   static_cast<std::uint16_t*>(launch.operands[1])[i] = static_cast<std::uint16_t>(
                       std::bit_cast<std::uint32_t>(static_cast<const float*>(launch.operands[0])[i]) >> 16);
               }).pass);
}

TEST_F(Cast, Mutant_LastElementLeftOut_IsCaught) {
  EXPECT_FALSE(check([](const Plan& sound, const Launch& launch) {
                 run_without_writing(sound, launch, static_cast<std::uint16_t*>(launch.operands[1]) + 1000, 2);
               }).pass);
}

TEST_F(Cast, Mutant_ShiftedByOne_IsCaught) {
  EXPECT_FALSE(check([](const Plan& sound, const Launch& launch) {
                 sound.run(launch);
                 auto* out = static_cast<std::uint16_t*>(launch.operands[1]);
                 std::copy_backward(out, out + 1000, out + 1001);
               }).pass);
}

}  // namespace
}  // namespace mixroof
