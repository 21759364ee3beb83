// Mutants that these tests catch: one step too few; the values after the last whole block left out; the addend
// multiplied too.
#include "kernels/fma/fma.h"

#include "kernels/kernel_test.h"

namespace mixroof {
namespace {

class Fma : public testing::Test {
 protected:
  bool passes(const Problem& problem, float (*step)(float), std::int64_t count, std::int64_t fmas) {
    const Mutant mutant = [=](const Launch& launch) {
      const float* x = floats(launch, 0);
      float* y = floats(launch, 1);
      for (std::int64_t i = 0; i < count; ++i) {
        y[i] = x[i];
        for (std::int64_t k = 0; k < fmas; ++k) y[i] = step(y[i]);
      }
    };
    return check_mutant(*backend_, fma_kernel(), problem, mutant).pass;
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

float right_step(float x) { return x * 0.5f + 0.25f; }
float addend_scaled(float x) { return (x + 0.25f) * 0.5f; }

TEST_F(Fma, EveryCase_AgreesWithTheReference_OnEveryTargetOfThisProcessor) {
  expect_all_cases_pass(fma_kernel(), *backend_, 61);
}

TEST(FmaCost, CountsTwoFlopsPerStepAndEachArrayOnce) {
  const Cost cost = fma_kernel().cost(fma_problem(1000, 16));
  EXPECT_EQ(cost.useful_flops[static_cast<std::size_t>(Format::fp32)], 32000);
  EXPECT_EQ(cost.bytes_read, 4000);
  EXPECT_EQ(cost.bytes_written, 4000);
}

TEST(FmaProblem, ImpossibleOnes_AreRefused) {
  EXPECT_THROW(fma_problem(-1, 1), UsageError);
  EXPECT_THROW(fma_problem(1, -1), UsageError);
}

TEST_F(Fma, TheMutantsHarness_PassesWithoutADefect) { EXPECT_TRUE(passes(fma_problem(205, 5), right_step, 205, 5)); }
TEST_F(Fma, Mutant_OneStepTooFew_IsCaught) { EXPECT_FALSE(passes(fma_problem(205, 5), right_step, 205, 4)); }
TEST_F(Fma, Mutant_TailLeftOut_IsCaught) { EXPECT_FALSE(passes(fma_problem(205, 5), right_step, 192, 5)); }
TEST_F(Fma, Mutant_AddendScaledToo_IsCaught) { EXPECT_FALSE(passes(fma_problem(205, 5), addend_scaled, 205, 5)); }

}  // namespace
}  // namespace mixroof
