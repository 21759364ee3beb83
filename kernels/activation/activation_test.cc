#include "kernels/activation/activation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/kernel_test.h"

namespace mixroof {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class ActivationTest : public ::testing::Test {
 protected:
  bool passes(const Problem& problem, const Mutant& mutant) {
    return check_mutant(*backend_, activation_kernel(), problem, mutant).pass;
  }
  std::vector<float> gelu(std::vector<float> x) {
    std::vector<float> y(x.size());
    run_kernel(*backend_, activation_kernel(), gelu_problem(size(x), Format::fp32, Format::fp32), {x.data(), y.data()});
    return y;
  }
  std::vector<float> gelu_backward(std::vector<float> dy, std::vector<float> x) {
    std::vector<float> dx(x.size());
    run_kernel(*backend_, activation_kernel(), gelu_backward_problem(size(x), Format::fp32, Format::fp32, Format::fp32),
               {dy.data(), x.data(), dx.data()});
    return dx;
  }
  static std::int64_t size(const std::vector<float>& v) { return static_cast<std::int64_t>(v.size()); }

  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

TEST_F(ActivationTest, EveryCaseInEveryRecipeIsWithinItsLimit) {
  expect_all_cases_pass(activation_kernel(), *backend_);
}

TEST_F(ActivationTest, CostIsNineFlopsForwardAndSeventeenBackward) {
  const Cost forward = activation_kernel().cost(gelu_problem(1000, Format::bf16, Format::bf16));
  EXPECT_EQ(forward.useful_flops[static_cast<std::size_t>(Format::fp32)], 9000);
  EXPECT_EQ(forward.bytes_read, 2000);
  EXPECT_EQ(forward.bytes_written, 2000);
  const Cost backward = activation_kernel().cost(gelu_backward_problem(1000, Format::bf16, Format::fp32, Format::fp16));
  EXPECT_EQ(backward.total_useful_flops(), 17000);
  EXPECT_EQ(backward.bytes_read, 2000 + 4000);
  EXPECT_EQ(backward.bytes_written, 2000);
}

TEST_F(ActivationTest, ReferenceIsTheTanhForm) {
  std::vector<double> x = {-3, -0.5, 0, 0.25, 2}, y(5);
  run_reference(activation_kernel(), gelu_problem(5, Format::fp32, Format::fp32), {&x, &y});
  for (std::size_t i = 0; i < x.size(); ++i)
    EXPECT_NEAR(y[i], x[i] / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x[i] + 0.044715 * x[i] * x[i] * x[i]))), 1e-14);
}

TEST_F(ActivationTest, ReferenceGradientIsTheSlopeOfTheReference) {
  std::vector<double> x = {-4, -1, 0, 0.3, 3}, dy = {2, 2, 2, 2, 2}, dx(5), low(5), high(5);
  run_reference(activation_kernel(), gelu_backward_problem(5, Format::fp32, Format::fp32, Format::fp32),
                {&dy, &x, &dx});
  const double h = 1e-6;
  for (double& v : x) v -= h;
  run_reference(activation_kernel(), gelu_problem(5, Format::fp32, Format::fp32), {&x, &low});
  for (double& v : x) v += 2 * h;
  run_reference(activation_kernel(), gelu_problem(5, Format::fp32, Format::fp32), {&x, &high});
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(dx[i], 2 * (high[i] - low[i]) / (2 * h), 1e-8);
}

TEST_F(ActivationTest, LargeInputsGiveTheirLimitsAndNoNaN) {
  const float huge = 3e38f;
  for_each_target([&] {
    EXPECT_THAT(gelu({huge, kInf, 50, -50, -huge, -kInf, 1e13f, -1e13f, 1e-30f}),
                ::testing::ElementsAre(huge, kInf, 50, 0, 0, 0, 1e13f, 0, 0.5e-30f));
    EXPECT_THAT(gelu_backward({1, 1, 1, 1, 1, 1, 1}, {huge, kInf, 50, 0, -50, -huge, -kInf}),
                ::testing::ElementsAre(1, 1, 1, 0.5f, 0, 0, 0));
  });
}

TEST_F(ActivationTest, NaNStaysNaN) {
  for_each_target([&] {
    for (const float y : gelu(std::vector<float>(9, NAN))) EXPECT_TRUE(std::isnan(y));
    for (const float dx : gelu_backward(std::vector<float>(9, 1), std::vector<float>(9, NAN)))
      EXPECT_TRUE(std::isnan(dx));
    for (const float dx : gelu_backward(std::vector<float>(9, NAN), std::vector<float>(9, 1)))
      EXPECT_TRUE(std::isnan(dx));
  });
}

// The tail of the curve, where 1 + tanh cancels: relative accuracy must hold down to the smallest normal numbers.
TEST_F(ActivationTest, LeftTailKeepsItsRelativeAccuracy) {
  std::vector<float> x;
  for (float v = -0.25f; v > -7.5f; v -= 0.25f) x.push_back(v);
  std::vector<double> exact(x.begin(), x.end()), y(x.size());
  run_reference(activation_kernel(), gelu_problem(size(x), Format::fp32, Format::fp32), {&exact, &y});
  const std::vector<float> got = gelu(x);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(got[i] / y[i], 1, 2e-5) << x[i];
}

TEST_F(ActivationTest, Mutant_LastElementNotWritten_IsCaught) {
  const Problem problem = gelu_problem(33, Format::fp32, Format::fp32);
  const auto plan = backend_->prepare(gelu_problem(32, Format::fp32, Format::fp32));
  EXPECT_FALSE(passes(problem, [&](const Launch& l) { plan->run(l); }));
}

TEST_F(ActivationTest, Mutant_ErfForm_IsCaught) {
  EXPECT_FALSE(passes(gelu_problem(64, Format::fp32, Format::fp32), [](const Launch& l) {
    for (int i = 0; i < 64; ++i)
      floats(l, 1)[i] = floats(l, 0)[i] / 2 * (1 + std::erf(floats(l, 0)[i] / std::sqrt(2.0f)));
  }));
}

TEST_F(ActivationTest, Mutant_SlopeWithoutTheBendOfTheCurve_IsCaught) {
  EXPECT_FALSE(passes(gelu_backward_problem(64, Format::fp32, Format::fp32, Format::fp32), [&](const Launch& l) {
    const std::vector<float> y = gelu(std::vector<float>(floats(l, 1), floats(l, 1) + 64));
    for (std::size_t i = 0; i < 64; ++i) floats(l, 2)[i] = floats(l, 0)[i] * y[i] / floats(l, 1)[i];
  }));
}

TEST_F(ActivationTest, Mutant_OperandsSwapped_IsCaught) {
  const Problem problem = gelu_backward_problem(40, Format::fp32, Format::fp32, Format::fp32);
  const auto plan = backend_->prepare(problem);
  EXPECT_FALSE(passes(problem, [&](const Launch& l) {
    void* const swapped[] = {l.operands[1], l.operands[0], l.operands[2]};
    plan->run({.operands = swapped, .workspace = l.workspace, .queue = nullptr});
  }));
}

TEST_F(ActivationTest, ImpossibleProblemsNameTheDimension) {
  const Recipe& recipe = find_recipe("fp32");
  EXPECT_THROW(gelu_problem(-1, Format::fp32, Format::fp32), UsageError);
  EXPECT_THROW(activation_kernel().problem(recipe, {"gelu", {}}), UsageError);
  EXPECT_THROW(activation_kernel().problem(recipe, {"swish", {{"count", 1}}}), UsageError);
}

}  // namespace
}  // namespace mixroof
