// Mutants that these tests catch: the last element left out; the branch dropped; the branch added twice; a sum kept in
// bf16 before it is stored in fp32.
#include "kernels/residual/residual.h"

#include "harness/numeric/codec.h"
#include "kernels/kernel_test.h"

namespace mixroof {
namespace {

class Residual : public testing::Test {
 protected:
  CheckResult check(std::int64_t count, const Defect& defect) {
    const Problem problem = residual_problem(count, Format::fp32, Format::fp32, Format::fp32);
    return check_mutant(*backend_, residual_kernel(), problem, defect);
  }
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

TEST_F(Residual, EveryCase_AgreesWithTheReference_OnEveryTargetOfThisProcessor) {
  expect_all_cases_pass(residual_kernel(), *backend_, 400);
}

TEST_F(Residual, Sum_IsRoundedOnce) {
  // 256 + 1.5 = 257.5 lies between 256 and 258 in bf16 and is rounded to 258; fp16 branch values enter exactly.
  const Problem problem = residual_problem(2, Format::bf16, Format::fp16, Format::bf16);
  const auto results = run_on(*backend_, residual_kernel(), problem, {{256, -1}, {1.5, 1 + 0x1p-10}, {}});
  EXPECT_EQ(results[2], (std::vector<double>{258, 0x1p-10}));
}

TEST(ResidualCost, CountsOneAdditionAndEachOperandOnce) {
  // 1000 elements: fp32 stream 4000 bytes and bf16 branch 2000 bytes read, fp32 sum 4000 bytes written.
  const Cost cost = residual_kernel().cost(residual_problem(1000, Format::fp32, Format::bf16, Format::fp32));
  EXPECT_EQ(cost.bytes_read, 6000);
  EXPECT_EQ(cost.bytes_written, 4000);
  EXPECT_EQ(cost.total_useful_flops(), 1000);
}

TEST(ResidualProblem, ImpossibleOnes_AreRefused) {
  EXPECT_THROW(residual_problem(-1, Format::fp32, Format::fp32, Format::fp32), UsageError);
  EXPECT_THROW(residual_kernel().problem(find_recipe("fp32"), {"sum", {{"count", 3}}}), UsageError);
}

TEST_F(Residual, Mutant_LastElementLeftOut_IsCaught) {
  EXPECT_FALSE(check(1001, [](const Plan& sound, const Launch& launch) {
                 run_without_writing(sound, launch, static_cast<float*>(launch.operands[2]) + 1000, sizeof(float));
               }).pass);
}

TEST_F(Residual, Mutant_BranchDropped_IsCaught) {
  EXPECT_FALSE(check(64, [](const Plan&, const Launch& launch) {
                 std::copy_n(static_cast<const float*>(launch.operands[0]), 64,
                             static_cast<float*>(launch.operands[2]));
               }).pass);
}

TEST_F(Residual, Mutant_BranchAddedTwice_IsCaught) {
  EXPECT_FALSE(check(64, [](const Plan& sound, const Launch& launch) {
                 sound.run(launch);
                 for (int i = 0; i < 64; ++i)
                   static_cast<float*>(launch.operands[2])[i] += static_cast<const float*>(launch.operands[1])[i];
               }).pass);
}

TEST_F(Residual, Mutant_SumKeptInBf16_IsCaught) {
  EXPECT_FALSE(check(64, [](const Plan& sound, const Launch& launch) {
                 sound.run(launch);
                 for (int i = 0; i < 64; ++i) {
                   float& value = static_cast<float*>(launch.operands[2])[i];
                   value = decode_bf16(encode_bf16(value));
                 }
               }).pass);
}

}  // namespace
}  // namespace mixroof
