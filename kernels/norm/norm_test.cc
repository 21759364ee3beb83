#include "kernels/norm/norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/kernel_test.h"

namespace mixroof {
namespace {

constexpr Format kF = Format::fp32;
constexpr double kEps = 1e-5;

Problem forward(std::int64_t rows, std::int64_t width) { return norm_forward_problem(rows, width, kF, kF, kF, kEps); }
Problem backward(std::int64_t rows, std::int64_t width, bool residual, bool accumulate) {
  return norm_backward_problem(rows, width, kF, kF, kF, kF, kF, residual, accumulate, kEps);
}

class NormTest : public ::testing::Test {
 protected:
  bool passes(const Problem& problem, const Mutant& mutant) {
    return check_mutant(*backend_, norm_kernel(), problem, mutant).pass;
  }
  bool passes(const Problem& problem, const Defect& defect) {
    return check_mutant(*backend_, norm_kernel(), problem, defect).pass;
  }
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

TEST_F(NormTest, EveryCaseInEveryRecipeIsWithinItsLimit) { expect_all_cases_pass(norm_kernel(), *backend_); }

TEST_F(NormTest, CostIsCountedByHand) {
  // Forward, 3 × 10: 8 · 30 + 5 · 3 = 255 FLOPs. Read x 30 · 2, weight and bias 10 · 4 each; written y 30 · 2, 3
  // statistics of 4 bytes twice.
  const Cost forward_cost = norm_kernel().cost(norm_forward_problem(3, 10, Format::bf16, kF, Format::bf16, kEps));
  EXPECT_EQ(forward_cost.useful_flops[static_cast<std::size_t>(kF)], 255);
  EXPECT_EQ(forward_cost.bytes_read, 60 + 40 + 40);
  EXPECT_EQ(forward_cost.bytes_written, 60 + 12 + 12);
  // Backward without residual: 13 · 30 + 2 · 3 = 396; with residual and accumulation 30 + 2 · 10 more.
  EXPECT_EQ(norm_kernel().cost(backward(3, 10, false, false)).total_useful_flops(), 396);
  const Cost full = norm_kernel().cost(backward(3, 10, true, true));
  EXPECT_EQ(full.total_useful_flops(), 446);
  // dy, x, dresidual 30 each, weight 10, statistics 6, and what dweight and dbias held.
  EXPECT_EQ(full.bytes_read, 4 * (3 * 30 + 10 + 6 + 20));
  EXPECT_EQ(full.bytes_written, 4 * (30 + 20));
}

TEST_F(NormTest, ReferenceOfATinyRowIsRightByHand) {
  // Row 1, 3: mean 2, variance 1; eps 3 makes rstd 1/2, so x̂ = ∓1/2.
  std::vector<double> x = {1, 3}, weight = {2, 4}, bias = {10, 20}, y(2), mean(1), rstd(1);
  run_reference(norm_kernel(), norm_forward_problem(1, 2, kF, kF, kF, 3), {&x, &weight, &bias, &y, &mean, &rstd});
  EXPECT_THAT(y, ::testing::ElementsAre(9, 22));
  EXPECT_THAT(mean, ::testing::ElementsAre(2));
  EXPECT_THAT(rstd, ::testing::ElementsAre(0.5));
  // dy 1, 1: g = 2, 4; Σg/2 = 3; Σg·x̂/2 = 1/2; dx = (g - 3 - x̂/2)/2 + dresidual = -0.375, 0.375 + 100.
  std::vector<double> dy = {1, 1}, dresidual = {0, 100}, dx(2), dweight = {5, 5}, dbias = {7, 7};
  run_reference(norm_kernel(), norm_backward_problem(1, 2, kF, kF, kF, kF, kF, true, true, 3),
                {&dy, &x, &weight, &mean, &rstd, &dresidual, &dx, &dweight, &dbias});
  EXPECT_THAT(dx, ::testing::ElementsAre(-0.375, 100.375));
  EXPECT_THAT(dweight, ::testing::ElementsAre(4.5, 5.5));
  EXPECT_THAT(dbias, ::testing::ElementsAre(8, 8));
}

// Σx² - (Σx)²/n in fp32 would have nothing left of a variance of 1 at an offset of 30000.
TEST_F(NormTest, StatisticsSurviveALargeOffset) {
  std::vector<float> x(1000), weight(1000, 1), bias(1000, 0), y(1000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 30000.0f + (i % 2 ? 1.0f : -1.0f);
  float mean = 0, rstd = 0;
  for_each_target([&] {
    run_kernel(*backend_, norm_kernel(), forward(1, 1000),
               {x.data(), weight.data(), bias.data(), y.data(), &mean, &rstd});
    EXPECT_EQ(mean, 30000.0f);
    EXPECT_NEAR(rstd, 1 / std::sqrt(1 + kEps), 1e-6);
  });
}

TEST_F(NormTest, WorkspaceIsSevenRowsPerWorkerAndDoesNotGrowWithTheRows) {
  const Problem problem = backward(100, 70, true, true);
  const std::int64_t one = norm_kernel().workspace_bytes(problem, {.threads = 1});
  EXPECT_EQ(norm_kernel().workspace_bytes(problem, {.threads = 5}), 5 * one);
  EXPECT_EQ(one, 7 * 80 * 4);  // width padded to 80
  EXPECT_EQ(norm_kernel().workspace_bytes(backward(1000000, 70, true, true), {.threads = 1}), one);
}

TEST_F(NormTest, NoRowsWriteZeroGradientsAndKeepAccumulatedOnes) {
  std::vector<float> weight(20, 1), dweight(20, NAN), dbias(20, NAN);
  const auto run = [&](bool accumulate) {
    run_kernel(*backend_, norm_kernel(), backward(0, 20, false, accumulate),
               {nullptr, nullptr, weight.data(), nullptr, nullptr, nullptr, dweight.data(), dbias.data()});
  };
  run(false);
  EXPECT_THAT(dweight, ::testing::Each(0.0f));
  EXPECT_THAT(dbias, ::testing::Each(0.0f));
  std::fill(dweight.begin(), dweight.end(), 3.0f);
  run(true);
  EXPECT_THAT(dweight, ::testing::Each(3.0f));
}

TEST_F(NormTest, Mutant_TailColumnNotWritten_IsCaught) {
  EXPECT_FALSE(passes(forward(3, 33), [](const Plan& sound, const Launch& l) {
    sound.run(l);
    for (int row = 0; row < 3; ++row) floats(l, 3)[row * 33 + 32] = 0;
  }));
}

TEST_F(NormTest, Mutant_LastRowNotWritten_IsCaught) {
  const auto plan = backend_->prepare(forward(2, 17));
  EXPECT_FALSE(passes(forward(3, 17), [&](const Launch& l) { plan->run(l); }));
}

TEST_F(NormTest, Mutant_UnbiasedVariance_IsCaught) {
  EXPECT_FALSE(passes(forward(2, 769), [](const Plan& sound, const Launch& l) {
    sound.run(l);
    for (int row = 0; row < 2; ++row) floats(l, 5)[row] *= std::sqrt(768.0f / 769.0f);
  }));
}

TEST_F(NormTest, Mutant_RstdOfTheNextRow_IsCaught) {
  EXPECT_FALSE(passes(backward(3, 64, true, false), [](const Plan& sound, const Launch& l) {
    std::vector<float> rotated(floats(l, 4), floats(l, 4) + 3);
    std::rotate(rotated.begin(), rotated.begin() + 1, rotated.end());
    run_replacing(sound, l, 4, rotated.data());
  }));
}

TEST_F(NormTest, Mutant_ResidualGradientDropped_IsCaught) {
  const auto plan = backend_->prepare(backward(3, 64, false, false));
  EXPECT_FALSE(passes(backward(3, 64, true, false), [&](const Launch& l) {
    std::vector<void*> operands(l.operands.begin(), l.operands.end());
    operands.erase(operands.begin() + 5);
    plan->run({.operands = operands, .workspace = l.workspace, .queue = nullptr});
  }));
}

TEST_F(NormTest, Mutant_AccumulateIgnored_IsCaught) {
  const auto plan = backend_->prepare(backward(3, 64, true, false));
  EXPECT_FALSE(passes(backward(3, 64, true, true), [&](const Launch& l) { plan->run(l); }));
}

TEST_F(NormTest, Mutant_LastRowMissingInWeightGradient_IsCaught) {
  const auto shorter = backend_->prepare(backward(69, 65, true, false));
  EXPECT_FALSE(passes(backward(70, 65, true, false), [&](const Plan& sound, const Launch& l) {
    sound.run(l);
    shorter->run(l);
  }));
}

TEST_F(NormTest, ImpossibleProblemsNameTheDimension) {
  EXPECT_THROW(forward(-1, 8), UsageError);
  EXPECT_THROW(forward(1, 0), UsageError);
  EXPECT_THROW(norm_kernel().problem(find_recipe("fp32"), {"forward", {{"rows", 3}}}), UsageError);
}

}  // namespace
}  // namespace mixroof
