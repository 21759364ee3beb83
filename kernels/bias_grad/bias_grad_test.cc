// Mutants that the check of this kernel catches: the last column not written, the accumulate flag ignored, the last row
// dropped, the chunk sums rounded to bf16.
#include "kernels/bias_grad/bias_grad.h"

#include "kernels/kernel_test.h"

namespace mixroof {
namespace {

using enum Format;

TEST(BiasGrad, EveryRecipe_OnEveryInstructionSet_MatchesTheReference) {
  expect_all_cases_pass(bias_grad_kernel(), *make_cpu_backend(2));
}

TEST(BiasGrad, Cost_IsOneAdditionPerElementLessTheFirst) {
  // 128 rows of 768 bf16: 127·768 = 97,536 additions; 2·128·768 = 196,608 bytes read, 4·768 = 3,072 written.
  const Cost write = bias_grad_kernel().cost(bias_grad_problem(128, 768, bf16, fp32, false));
  EXPECT_EQ(write.total_useful_flops(), 97'536);
  EXPECT_EQ(write.bytes_read, 196'608);
  EXPECT_EQ(write.bytes_written, 3'072);
  // Accumulating adds what was there: 128·768 = 98,304 additions, 3,072 bytes more to read.
  const Cost accumulate = bias_grad_kernel().cost(bias_grad_problem(128, 768, bf16, fp32, true));
  EXPECT_EQ(accumulate.total_useful_flops(), 98'304);
  EXPECT_EQ(accumulate.bytes_read, 199'680);
  EXPECT_EQ(bias_grad_kernel().cost(bias_grad_problem(0, 768, bf16, fp32, false)).total_useful_flops(), 0);
}

TEST(BiasGrad, ManyEqualRows_AreSummedWithoutStalling) {
  // 2^17 rows of 1 + 2^-7 in bf16: 132,096. A sum kept in bf16 would stall at 256.
  const std::int64_t rows = 1 << 17;
  const auto backend = make_cpu_backend(1);
  std::vector<std::uint16_t> dy(static_cast<std::size_t>(rows), 0x3F81);
  float dbias = 0;
  std::vector<void*> operands = {dy.data(), &dbias};
  backend->prepare(bias_grad_problem(rows, 1, bf16, fp32, false))->run({.operands = operands});
  EXPECT_EQ(dbias, 132'096.0f);
}

TEST(BiasGrad, ImpossibleCases_NameTheDimension) {
  EXPECT_THROW(bias_grad_kernel().problem(find_recipe("fp32"), {"backward", {{"rows", 3}}}), UsageError);
  EXPECT_THROW(bias_grad_kernel().problem(find_recipe("fp32"), {"forward", {{"rows", 3}, {"width", 4}}}), UsageError);
}

// ---- Mutants: defects that the check must see. ----

class BiasGradMutants : public testing::Test {
 protected:
  void expect_caught(const Problem& problem, const Mutant& mutant) {
    mixroof::expect_caught(*backend_, bias_grad_kernel(), problem, mutant);
  }
  void run_right(const Problem& problem, std::vector<void*> operands) {
    backend_->prepare(problem)->run({.operands = operands});
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

TEST_F(BiasGradMutants, LastColumnNotWritten) {
  const Problem p = bias_grad_problem(70, 259, bf16, fp32, false);
  expect_caught(p, [&](const Launch& l) {
    auto* dbias = static_cast<float*>(l.operands[1]);
    const float before = dbias[258];
    run_right(p, {l.operands[0], dbias});
    dbias[258] = before;
  });
}

TEST_F(BiasGradMutants, AccumulateFlagIgnored) {
  const Problem overwriting = bias_grad_problem(70, 259, bf16, bf16, false);
  expect_caught(bias_grad_problem(70, 259, bf16, bf16, true), [&](const Launch& l) {
    run_right(overwriting, {l.operands[0], l.operands[1]});
  });
}

TEST_F(BiasGradMutants, LastRowDropped) {
  const Problem shorter = bias_grad_problem(1023, 33, fp16, fp16, false);
  expect_caught(bias_grad_problem(1024, 33, fp16, fp16, false), [&](const Launch& l) {
    run_right(shorter, {l.operands[0], l.operands[1]});
  });
}

TEST_F(BiasGradMutants, ChunkSumsRoundedToBf16) {
  const Problem first = bias_grad_problem(64, 65, bf16, bf16, false),
                rest = bias_grad_problem(64, 65, bf16, bf16, true);
  expect_caught(bias_grad_problem(128, 65, bf16, bf16, false), [&](const Launch& l) {
    run_right(first, {l.operands[0], l.operands[1]});
    run_right(rest, {static_cast<std::uint16_t*>(l.operands[0]) + 64 * 65, l.operands[1]});
  });
}

}  // namespace
}  // namespace mixroof
