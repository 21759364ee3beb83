// SwiGLU, the variants swiglu and swiglu_backward. Mutants that these tests catch: gate and up swapped; the slope of
// the gate without its bend; the gradient of up through the gate instead of its silu; the last column not written.
#include <cmath>
#include <limits>

#include "kernels/activation/activation.h"
#include "kernels/kernel_test.h"

namespace mixroof {
namespace {

constexpr Format kF = Format::fp32;
constexpr float kInf = std::numeric_limits<float>::infinity();

double sigmoid(double t) { return 1 / (1 + std::exp(-t)); }

class SwiGlu : public testing::Test {
 protected:
  template <typename Damage>
  bool passes(const Problem& problem, const Damage& damage) {
    return check_mutant(*backend_, activation_kernel(), problem, damage).pass;
  }
  /// silu(gate)·up of one row.
  std::vector<float> swiglu(const std::vector<float>& gate, const std::vector<float>& up) {
    std::vector<float> row = gate, y(gate.size());
    row.insert(row.end(), up.begin(), up.end());
    run_kernel(*backend_, activation_kernel(), swiglu_problem(1, static_cast<std::int64_t>(gate.size()), kF, kF),
               {row.data(), y.data()});
    return y;
  }
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

TEST_F(SwiGlu, CostIsFiveFlopsForwardAndElevenBackward) {
  const Cost there = activation_kernel().cost(swiglu_problem(10, 100, Format::bf16, Format::bf16));
  EXPECT_EQ(there.useful_flops[static_cast<std::size_t>(kF)], 5000);
  EXPECT_EQ(there.bytes_read, 4000);
  EXPECT_EQ(there.bytes_written, 2000);
  const Cost back =
      activation_kernel().cost(swiglu_backward_problem(10, 100, Format::bf16, Format::bf16, Format::bf16));
  EXPECT_EQ(back.total_useful_flops(), 11000);
  EXPECT_EQ(back.bytes_read, 2000 + 4000);
  EXPECT_EQ(back.bytes_written, 4000);
}

TEST_F(SwiGlu, ReferenceIsSiluOfTheGateTimesUp) {
  std::vector<double> gate_up = {-3, 0.5, 2, 4, 8, -1}, y;
  run_reference(activation_kernel(), swiglu_problem(1, 3, kF, kF), {&gate_up, &y});
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(y[i], gate_up[i] * sigmoid(gate_up[i]) * gate_up[3 + i], 1e-15);
}

TEST_F(SwiGlu, ReferenceGradientIsTheSlopeOfTheReference) {
  std::vector<double> gate_up = {-3, 0, 2, 4, 8, -1}, dy = {1, -2, 0.5}, dgate_up, y;
  run_reference(activation_kernel(), swiglu_backward_problem(1, 3, kF, kF, kF), {&dy, &gate_up, &dgate_up});
  for (std::size_t i = 0; i < 6; ++i) {
    const auto loss_at = [&](double value) {
      std::vector<double> moved = gate_up;
      moved[i] = value;
      run_reference(activation_kernel(), swiglu_problem(1, 3, kF, kF), {&moved, &y});
      return dy[0] * y[0] + dy[1] * y[1] + dy[2] * y[2];
    };
    EXPECT_NEAR(dgate_up[i], (loss_at(gate_up[i] + 1e-6) - loss_at(gate_up[i] - 1e-6)) / 2e-6, 1e-8) << i;
  }
}

TEST_F(SwiGlu, LargeGatesGiveTheirLimitsAndNaNStays) {
  for_each_target([&] {
    EXPECT_THAT(swiglu({1e30f, 200, -200, -1e30f, 0, kInf}, {1, 2, 3, 4, 5, 1}),
                testing::ElementsAre(1e30f, 400, 0, 0, 0, kInf));
    for (const float y : swiglu(std::vector<float>(9, NAN), std::vector<float>(9, 1))) EXPECT_TRUE(std::isnan(y));
    for (const float y : swiglu(std::vector<float>(9, 1), std::vector<float>(9, NAN))) EXPECT_TRUE(std::isnan(y));
  });
}

TEST_F(SwiGlu, Mutant_GateAndUpSwapped_IsCaught) {
  const Problem problem = swiglu_problem(2, 19, kF, kF);
  EXPECT_FALSE(passes(problem, [](const Plan& sound, const Launch& l) {
    std::vector<float> swapped;
    for (int row = 0; row < 2; ++row)
      for (const int half : {1, 0})
        swapped.insert(swapped.end(), floats(l, 0) + row * 38 + half * 19, floats(l, 0) + row * 38 + half * 19 + 19);
    run_replacing(sound, l, 0, swapped.data());
  }));
}

TEST_F(SwiGlu, Mutants_OfThePlainBackward_AreCaughtAndThePlainOnePasses) {
  const Problem problem = swiglu_backward_problem(2, 37, kF, kF, kF);
  const auto plain = [](double bend, bool through_silu) {
    return [=](const Launch& l) {
      for (int row = 0; row < 2; ++row)
        for (int i = 0; i < 37; ++i) {
          const double dy = floats(l, 0)[row * 37 + i], gate = floats(l, 1)[row * 74 + i],
                       up = floats(l, 1)[row * 74 + 37 + i];
          const double s = sigmoid(gate);
          floats(l, 2)[row * 74 + i] = static_cast<float>(dy * up * s * (1 + bend * gate * (1 - s)));
          floats(l, 2)[row * 74 + 37 + i] = static_cast<float>(dy * gate * (through_silu ? s : 1));
        }
    };
  };
  EXPECT_TRUE(passes(problem, Mutant(plain(1, true))));
  EXPECT_FALSE(passes(problem, Mutant(plain(0, true))));
  EXPECT_FALSE(passes(problem, Mutant(plain(1, false))));
}

TEST_F(SwiGlu, Mutant_LastColumnNotWritten_IsCaught) {
  EXPECT_FALSE(passes(swiglu_problem(3, 33, kF, kF), [](const Plan& sound, const Launch& l) {
    sound.run(l);
    for (int row = 0; row < 3; ++row) floats(l, 1)[row * 33 + 32] = 0;
  }));
}

}  // namespace
}  // namespace mixroof
