// RMS norm, the variants rms_forward and rms_backward. Mutants that these tests catch: the mean subtracted; eps outside
// the root; the weight left out of the backward sum; the residual gradient dropped; accumulation ignored.
#include <cmath>

#include "kernels/kernel_test.h"
#include "kernels/norm/norm.h"

namespace mixroof {
namespace {

constexpr Format kF = Format::fp32;
constexpr double kEps = 1e-5;

Problem forward(std::int64_t rows, std::int64_t width, double eps = kEps) {
  return rms_norm_forward_problem(rows, width, kF, kF, kF, eps);
}
Problem backward(std::int64_t rows, std::int64_t width, bool residual, bool accumulate) {
  return rms_norm_backward_problem(rows, width, kF, kF, kF, kF, kF, residual, accumulate, kEps);
}

class RmsNorm : public testing::Test {
 protected:
  template <typename Damage>
  bool passes(const Problem& problem, const Damage& damage) {
    return check_mutant(*backend_, norm_kernel(), problem, damage).pass;
  }
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

TEST_F(RmsNorm, CostIsCountedByHand) {
  // Forward 3 × 10: 4 · 30 + 4 · 3. Read x 30 · 2 and weight 10 · 4; written y 30 · 2 and 3 reciprocals.
  const Cost there = norm_kernel().cost(rms_norm_forward_problem(3, 10, Format::bf16, kF, Format::bf16, kEps));
  EXPECT_EQ(there.useful_flops[static_cast<std::size_t>(kF)], 132);
  EXPECT_EQ(there.bytes_read, 60 + 40);
  EXPECT_EQ(there.bytes_written, 60 + 12);
  // Backward 9 · 30 + 3; with residual and accumulation 30 + 10 more. dy, x, dresidual, weight, rstd and dweight read.
  EXPECT_EQ(norm_kernel().cost(backward(3, 10, false, false)).total_useful_flops(), 273);
  const Cost full = norm_kernel().cost(backward(3, 10, true, true));
  EXPECT_EQ(full.total_useful_flops(), 313);
  EXPECT_EQ(full.bytes_read, 4 * (3 * 30 + 10 + 3 + 10));
  EXPECT_EQ(full.bytes_written, 4 * (30 + 10));
}

TEST_F(RmsNorm, ReferenceOfATinyRowIsRightByHand) {
  // Row 1, 7: mean square 25; eps 11 makes rstd 1/6.
  std::vector<double> x = {1, 7}, weight = {6, 12}, y, rstd;
  run_reference(norm_kernel(), forward(1, 2, 11), {&x, &weight, &y, &rstd});
  EXPECT_DOUBLE_EQ(rstd[0], 1.0 / 6);
  EXPECT_DOUBLE_EQ(y[0], 1);
  EXPECT_DOUBLE_EQ(y[1], 14);
  // dy 1, 1: g = 6, 12, x̂ = 1/6, 7/6; Σg·x̂/2 = 7.5; dx = (g - x̂·7.5)/6 + dresidual.
  std::vector<double> dy = {1, 1}, dresidual = {0, 100}, dx, dweight = {5, 5};
  run_reference(norm_kernel(), backward(1, 2, true, true), {&dy, &x, &weight, &rstd, &dresidual, &dx, &dweight});
  EXPECT_DOUBLE_EQ(dx[0], (6 - 1.25) / 6);
  EXPECT_DOUBLE_EQ(dx[1], (12 - 8.75) / 6 + 100);
  EXPECT_DOUBLE_EQ(dweight[0], 5 + 1.0 / 6);
  EXPECT_DOUBLE_EQ(dweight[1], 5 + 7.0 / 6);
}

TEST_F(RmsNorm, ReferenceGradientIsTheSlopeOfTheReference) {
  std::vector<double> x = {0.3, -2, 1.1}, weight = {1.5, -0.5, 2}, rstd, dx, dweight, y;
  std::vector<double> dy = {0.7, -1.2, 0.4};
  const auto loss = [&] {
    run_reference(norm_kernel(), forward(1, 3), {&x, &weight, &y, &rstd});
    return dy[0] * y[0] + dy[1] * y[1] + dy[2] * y[2];
  };
  loss();
  run_reference(norm_kernel(), backward(1, 3, false, false), {&dy, &x, &weight, &rstd, &dx, &dweight});
  const auto slope = [&](double& value) {
    const double h = 1e-6, at = value;
    value = at + h;
    const double high = loss();
    value = at - h;
    const double low = loss();
    value = at;
    return (high - low) / (2 * h);
  };
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(dx[i], slope(x[i]), 1e-8);
    EXPECT_NEAR(dweight[i], slope(weight[i]), 1e-8);
  }
}

TEST_F(RmsNorm, LargeAndTinyRowsNeitherOverflowNorLoseTheirScale) {
  std::vector<float> x(64, 1e15f), weight(64, 1), y(64);
  float rstd = 0;
  for_each_target([&] {
    run_kernel(*backend_, norm_kernel(), forward(1, 64), {x.data(), weight.data(), y.data(), &rstd});
    EXPECT_FLOAT_EQ(y[0], 1);
    EXPECT_FLOAT_EQ(y[63], 1);
    EXPECT_FLOAT_EQ(rstd, 1e-15f);
  });
}

TEST_F(RmsNorm, ResultsDoNotDependOnTheNumberOfWorkers) {
  const Problem problem = backward(200, 65, true, true);
  const auto inputs = make_inputs(norm_kernel(), problem, 1);
  const auto one = run_on(*make_cpu_backend(1), norm_kernel(), problem, inputs);
  const auto again = run_on(*make_cpu_backend(1), norm_kernel(), problem, inputs);
  for (const std::size_t output : {5, 6}) EXPECT_TRUE(same_bytes(one[output], again[output]));
}

TEST_F(RmsNorm, Mutant_MeanSubtracted_IsCaught) {
  const Problem problem = forward(3, 33);
  EXPECT_FALSE(passes(problem, [](const Plan& sound, const Launch& l) {
    std::vector<float> centred(floats(l, 0), floats(l, 0) + 99);
    for (int row = 0; row < 3; ++row) {
      float mean = 0;
      for (int i = 0; i < 33; ++i) mean += centred[static_cast<std::size_t>(row * 33 + i)] / 33;
      for (int i = 0; i < 33; ++i) centred[static_cast<std::size_t>(row * 33 + i)] -= mean;
    }
    run_replacing(sound, l, 0, centred.data());
  }));
}

TEST_F(RmsNorm, Mutant_EpsAddedToTheRoot_IsCaught) {
  const Problem problem = forward(2, 20, 0.5);
  EXPECT_FALSE(passes(problem, [](const Plan& sound, const Launch& l) {
    sound.run(l);
    for (int row = 0; row < 2; ++row) {
      const float inside = floats(l, 3)[row];
      floats(l, 3)[row] = 1 / (std::sqrt(1 / (inside * inside) - 0.5f) + 0.5f);
    }
  }));
}

TEST_F(RmsNorm, Mutant_WeightLeftOutOfTheBackwardSum_IsCaught) {
  const Problem problem = backward(3, 48, false, false);
  EXPECT_FALSE(passes(problem, [](const Plan& sound, const Launch& l) {
    std::vector<float> ones(48, 1);
    run_replacing(sound, l, 2, ones.data());
  }));
}

TEST_F(RmsNorm, Mutant_ResidualGradientDropped_IsCaught) {
  const auto plan = backend_->prepare(backward(3, 64, false, false));
  EXPECT_FALSE(passes(backward(3, 64, true, false), [&](const Launch& l) {
    std::vector<void*> operands(l.operands.begin(), l.operands.end());
    operands.erase(operands.begin() + 4);
    plan->run({.operands = operands, .workspace = l.workspace, .queue = nullptr});
  }));
}

TEST_F(RmsNorm, Mutant_AccumulateIgnored_IsCaught) {
  const auto plan = backend_->prepare(backward(3, 64, true, false));
  EXPECT_FALSE(passes(backward(3, 64, true, true), [&](const Launch& l) { plan->run(l); }));
}

}  // namespace
}  // namespace mixroof
