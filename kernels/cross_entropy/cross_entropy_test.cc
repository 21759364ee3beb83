// Mutants that these tests catch: the last column not written; a masked row with a gradient; the loss scale dropped;
// the count of tokens dropped; accumulate ignored; the target's one missing; another slot of the control tensor
// written.
#include "kernels/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "harness/backend/cpu/parallel.h"
#include "kernels/kernel_test.h"

namespace mixroof {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<double> control_of(double effective_tokens, double loss_scale, double loss_sum = 0) {
  return control_with(
      {{Slot::effective_tokens, effective_tokens}, {Slot::loss_scale, loss_scale}, {Slot::loss_sum, loss_sum}});
}

struct Outcome {
  std::vector<double> gradient, losses, control;
  double loss_sum() const { return slot(control.data(), Slot::loss_sum); }
};

class CrossEntropy : public testing::Test {
 protected:
  Outcome run(std::int64_t vocab, Format format, std::vector<double> logits, std::vector<double> targets,
              std::vector<double> control, bool accumulate = false) {
    const auto rows = static_cast<std::int64_t>(targets.size());
    auto results = run_on(*backend_, cross_entropy_kernel(), cross_entropy_problem(rows, vocab, format, accumulate),
                          {std::move(logits), std::move(targets), {}, std::move(control)});
    return {results[0], results[2], results[3]};
  }
  CheckResult check(const Defect& defect) {
    return check_mutant(*backend_, cross_entropy_kernel(), cross_entropy_problem(kRows, kVocab, Format::fp32, true),
                        defect);
  }
  static constexpr std::int64_t kRows = 24, kVocab = 33;
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

TEST_F(CrossEntropy, EveryCase_AgreesWithTheReference_OnEveryTargetOfThisProcessor) {
  expect_all_cases_pass(cross_entropy_kernel(), *backend_, 300);
}

// Two logits, 0 at the target and ln(e^L - 1) beside it, have the loss ln(1 + e^L - 1) = L.
void add_row(std::vector<double>& logits, std::vector<double>& targets, double loss) {
  logits.insert(logits.end(), {0.0, std::log(std::exp(loss) - 1)});
  targets.push_back(0);
}

TEST_F(CrossEntropy, LS6_UnequalMicroBatches_GiveTheMeanOverTokensNotTheMeanOfMeans) {  // cases.md LS-6
  // 8 tokens with mean loss 1.0 and 2 tokens with mean 4.0: (8·1 + 2·4)/10 = 1.6, not (1 + 4)/2 = 2.5.
  std::vector<double> logits, targets, more_logits, more_targets;
  for (int i = 0; i < 8; ++i) add_row(logits, targets, 1.0);
  for (int i = 0; i < 2; ++i) add_row(more_logits, more_targets, 4.0);
  // Masked rows carry nothing, whatever their logits are.
  more_logits.insert(more_logits.end(), {50, -50});
  more_targets.push_back(-1);
  const Outcome first = run(2, Format::fp32, logits, targets, control_of(10, 1, 99));
  const Outcome second = run(2, Format::fp32, more_logits, more_targets, first.control, true);
  EXPECT_NEAR(second.loss_sum() / 10, 1.6, 1e-6);
  // p at the target is e^-L: the gradient of every token is divided by the window's 10 tokens.
  EXPECT_NEAR(first.gradient[0], (std::exp(-1.0) - 1) / 10, 1e-7);
  EXPECT_NEAR(second.gradient[0], (std::exp(-4.0) - 1) / 10, 1e-7);
}

TEST_F(CrossEntropy, LS6_AWindowWithoutEffectiveTokens_HasNoLossAndNoGradient) {  // cases.md LS-6
  const Outcome outcome = run(2, Format::fp16, {1, 2, 3, 4}, {-1, -1}, control_of(0, 65536));
  EXPECT_EQ(outcome.loss_sum(), 0);
  EXPECT_EQ(outcome.losses, (std::vector<double>{0, 0}));
  EXPECT_EQ(outcome.gradient, (std::vector<double>{0, 0, 0, 0}));
  // Even if a row does carry a target: nothing is divided by zero.
  EXPECT_EQ(run(2, Format::fp32, {1, 2}, {0}, control_of(0, 65536)).gradient, (std::vector<double>{0, 0}));
}

TEST_F(CrossEntropy, LossScale_SavesFp16GradientsThatWouldBeZero) {
  // 4096 equal logits, 4096 tokens: p/count = 2^-24, the least subnormal of fp16; with 16 times the tokens it is 2^-28
  // and rounds to 0. A scale of 65536 brings it to 2^-12, exact.
  std::vector<double> logits(4096, 0.0);
  EXPECT_EQ(run(4096, Format::fp16, logits, {0}, control_of(65536, 1)).gradient[1], 0);
  EXPECT_NEAR(run(4096, Format::fp16, logits, {0}, control_of(65536, 65536)).gradient[1], 0x1p-12, 0x1p-22);
}

TEST_F(CrossEntropy, LargeLogits_LoseNothing) {
  for_each_target([&] {
    for (const double shift : {-1e4, 0.0, 1e4}) {
      // 1e4 and 1e4 - 1 are whole numbers of fp32: loss ln(1 + 1/e) = 0.31326168751822286.
      const Outcome outcome = run(2, Format::fp32, {shift, shift - 1}, {0}, control_of(1, 1));
      EXPECT_NEAR(outcome.losses[0], 0.31326168751822286, 1e-6) << shift;
      EXPECT_NEAR(outcome.gradient[1], 1 / (1 + std::exp(1.0)), 1e-6) << shift;
    }
    const Outcome far = run(2, Format::fp32, {1e4, -1e4}, {1}, control_of(1, 1));
    EXPECT_EQ(far.losses[0], 2e4);
    EXPECT_EQ(far.gradient, (std::vector<double>{1, -1}));
  });
}

TEST_F(CrossEntropy, ALaterMaximum_RescalesTheSum) {
  // The maximum lies in the third chunk of 1024: 2500 logits of 0 and one of 10, ln(2500 + e^10) - 10 = 0.1075…
  std::vector<double> logits(2501, 0.0);
  logits[2200] = 10;
  const Outcome outcome = run(2501, Format::fp32, logits, {2200}, control_of(1, 1));
  EXPECT_NEAR(outcome.losses[0], std::log(2500 + std::exp(10.0)) - 10, 1e-6);
}

TEST_F(CrossEntropy, ANonFiniteLogit_MakesLossAndGradientNonFinite_WhereverItStands) {
  for_each_target([&] {
    for (const double bad : {kInf, -kInf, kNaN})
      for (const std::size_t at : {std::size_t{0}, std::size_t{9}, std::size_t{32}, std::size_t{1500}}) {
        std::vector<double> logits(1501, 0.5);
        logits[at] = bad;
        const Outcome outcome = run(1501, Format::bf16, logits, {3}, control_of(1, 1));
        EXPECT_TRUE(std::isnan(outcome.losses[0])) << bad << " at " << at;
        EXPECT_TRUE(std::isnan(outcome.gradient[at])) << bad << " at " << at;
        EXPECT_TRUE(std::isnan(outcome.gradient[3])) << bad << " at " << at;
        EXPECT_TRUE(std::isnan(outcome.loss_sum()));
      }
  });
}

TEST_F(CrossEntropy, AMaskedRow_IsNotRead) {
  const Outcome outcome = run(3, Format::fp32, {kNaN, kInf, 1, 0, 0, 0}, {-1, 2}, control_of(1, 1));
  EXPECT_EQ(outcome.losses[0], 0);
  EXPECT_NEAR(outcome.loss_sum(), std::log(3.0), 1e-6);
  EXPECT_EQ(outcome.gradient[0], 0);
  EXPECT_EQ(outcome.gradient[1], 0);
}

TEST_F(CrossEntropy, Results_AreTheSameBitsWithAnyNumberOfWorkers) {
  const Problem problem = cross_entropy_problem(64, 1500, Format::bf16, true);
  const auto inputs = make_inputs(cross_entropy_kernel(), problem, 3);
  const auto expected = run_on(*backend_, cross_entropy_kernel(), problem, inputs);
  for (const int workers : {1, 3, 8}) {
    set_worker_count(workers);
    EXPECT_EQ(run_on(*backend_, cross_entropy_kernel(), problem, inputs), expected) << workers << " workers";
  }
  set_worker_count(2);
}

TEST(CrossEntropyCost, CountsFourPerLogitAndFivePerRow) {
  // 10 rows of 100 bf16 logits: 2000 bytes read and written; 40 bytes of targets; 40 of losses; control 32·8 both ways.
  const Cost cost = cross_entropy_kernel().cost(cross_entropy_problem(10, 100, Format::bf16, false));
  EXPECT_EQ(cost.bytes_read, 2000 + 40 + 256);
  EXPECT_EQ(cost.bytes_written, 2000 + 40 + 256);
  EXPECT_EQ(cost.useful_flops[static_cast<std::size_t>(Format::fp32)], 10 * (4 * 100 + 5));
  EXPECT_EQ(cost.total_useful_flops(), 4050);
}

TEST(CrossEntropyProblem, ImpossibleOnes_AreRefused) {
  EXPECT_THROW(cross_entropy_problem(-1, 3, Format::fp32, false), UsageError);
  EXPECT_THROW(cross_entropy_problem(1, 0, Format::fp32, false), UsageError);
  EXPECT_THROW(cross_entropy_kernel().problem(find_recipe("fp32"), {"fused", {{"rows", 3}}}), UsageError);
}

TEST_F(CrossEntropy, Mutant_LastColumnNotWritten_IsCaught) {
  EXPECT_FALSE(check([](const Plan& sound, const Launch& launch) {
                 run_without_writing(sound, launch, static_cast<float*>(launch.operands[0]) + kVocab - 1,
                                     sizeof(float));
               }).pass);
}

TEST_F(CrossEntropy, Mutant_MaskedRowWithGradient_IsCaught) {
  EXPECT_FALSE(check([](const Plan& sound, const Launch& launch) {
                 // The gradient of equal logits with target 0, in one element of the first masked row.
                 const auto* targets = static_cast<const std::int32_t*>(launch.operands[1]);
                 const auto* masked = std::find(targets, targets + kRows, -1);
                 ASSERT_NE(masked, targets + kRows);
                 sound.run(launch);
                 auto* row = static_cast<float*>(launch.operands[0]) + (masked - targets) * kVocab;
                 row[0] = -1.024f * (1 - 1.0f / kVocab);
               }).pass);
}

TEST_F(CrossEntropy, Mutant_LossScaleDropped_IsCaught) {
  EXPECT_FALSE(check([](const Plan& sound, const Launch& launch) {
                 double& scale = slot(static_cast<double*>(launch.operands[3]), Slot::loss_scale);
                 const double kept = std::exchange(scale, 1.0);
                 sound.run(launch);
                 scale = kept;
               }).pass);
}

TEST_F(CrossEntropy, Mutant_TokensOfTheMicroBatchInsteadOfTheWindow_IsCaught) {
  EXPECT_FALSE(check([](const Plan& sound, const Launch& launch) {
                 double& tokens = slot(static_cast<double*>(launch.operands[3]), Slot::effective_tokens);
                 const double kept = std::exchange(tokens, static_cast<double>(kRows));
                 sound.run(launch);
                 tokens = kept;
               }).pass);
}

TEST_F(CrossEntropy, Mutant_AccumulateIgnored_IsCaught) {
  EXPECT_FALSE(check([](const Plan& sound, const Launch& launch) {
                 slot(static_cast<double*>(launch.operands[3]), Slot::loss_sum) = 0;
                 sound.run(launch);
               }).pass);
}

TEST_F(CrossEntropy, Mutant_TargetsOneMissing_IsCaught) {
  EXPECT_FALSE(check([](const Plan& sound, const Launch& launch) {
                 sound.run(launch);
                 const auto* targets = static_cast<const std::int32_t*>(launch.operands[1]);
                 const auto* first = std::find_if(targets, targets + kRows, [](std::int32_t t) { return t >= 0; });
                 static_cast<float*>(launch.operands[0])[(first - targets) * kVocab + *first] += 1.024f;
               }).pass);
}

TEST_F(CrossEntropy, Mutant_AnotherSlotWritten_IsCaught) {
  EXPECT_FALSE(check([](const Plan& sound, const Launch& launch) {
                 sound.run(launch);
                 slot(static_cast<double*>(launch.operands[3]), Slot::found_inf) = 1;
               }).pass);
}

}  // namespace
}  // namespace mixroof
