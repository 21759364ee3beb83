// Mutants that these tests catch: the history does not move; its oldest row is left out of the maximum; a NaN in the
// history is ignored; an infinite quotient is not clamped; the margin is dropped.
#include "kernels/fp8_scale/fp8_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/kernel_test.h"
#include "kernels/quantize/quantize.h"

namespace mixroof {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();

class Fp8Scale : public testing::Test {
 protected:
  /// The scale of one E4M3 tensor after the given maxima, each of a window of its own, from `scale` on.
  float scale_after(const std::vector<float>& maxima, float scale = 1, std::int64_t length = 4, double margin = 0,
                    float limit = 448) {
    std::vector<float> history(static_cast<std::size_t>(length), 0.0f);
    counts_ = {0, 0};
    for (float amax : maxima)
      run_kernel(*backend_, fp8_scale_kernel(), fp8_scale_problem(1, length, margin),
                 {&amax, history.data(), &limit, &scale, counts_.data()});
    return scale;
  }

  bool mutant_passes(const Defect& defect, double margin = 0) {
    return check_mutant(*backend_, fp8_scale_kernel(), fp8_scale_problem(kTensors, kLength, margin), defect).pass;
  }
  static std::vector<float> values(const Launch& launch, std::size_t operand, std::int64_t count) {
    const auto* data = static_cast<const float*>(launch.operands[operand]);
    return {data, data + count};
  }

  static constexpr std::int64_t kTensors = 37, kLength = 3;
  std::vector<double> counts_ = {0, 0};  // of the last scale_after()
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

TEST_F(Fp8Scale, EveryCase_EqualsTheReference) { expect_all_cases_pass(fp8_scale_kernel(), *backend_); }

TEST_F(Fp8Scale, WithMargins_EqualsTheReference) {
  for (const double margin : {1.0, 2.0, 5.0}) {
    const CheckResult result = check_kernel(fp8_scale_kernel(), fp8_scale_problem(100, 16, margin), *backend_);
    EXPECT_TRUE(result.pass) << margin << ": " << result.detail;
  }
}

TEST(Fp8ScaleCost, CountsTwoDivisionsATensorAndEachByteOnce) {
  const Cost cost = fp8_scale_kernel().cost(fp8_scale_problem(100, 16, 0));
  EXPECT_EQ(cost.useful_flops[static_cast<std::size_t>(Format::fp32)], 200);
  EXPECT_EQ(cost.bytes_read, 4 * (100 + 1600 + 100 + 100) + 16);  // amax, history, limits, scale, counts
  EXPECT_EQ(cost.bytes_written, 4 * (1600 + 100) + 16);           // history, scale, counts
}

TEST(Fp8ScaleProblem, ImpossibleOnes_AreRefused) {
  EXPECT_THROW(fp8_scale_problem(-1, 4, 0), UsageError);
  EXPECT_THROW(fp8_scale_problem(1, 0, 0), UsageError);
}

TEST_F(Fp8Scale, FP8_1_KeptAndClampedScales_AreCounted) {
  scale_after({0, kInf, kNan, 0}, 1, /*length=*/1);
  EXPECT_EQ(counts_, (std::vector<double>{4, 0}));
  scale_after({1e-40f, 0x1p-149f, 3}, 1, /*length=*/1);
  EXPECT_EQ(counts_, (std::vector<double>{0, 2}));
}

TEST_F(Fp8Scale, FP8_1_ZeroInfiniteAndNaNMaxima_KeepTheScale) {
  EXPECT_EQ(scale_after({0, 0, 0}, 16), 16);
  EXPECT_EQ(scale_after({0}), 1);
  EXPECT_EQ(scale_after({kInf}, 16), 16);
  EXPECT_EQ(scale_after({kNan, 3.0f}, 16), 16);
  EXPECT_EQ(scale_after({3.0f}), 448.0f / 3.0f);  // 149.3333
}

TEST_F(Fp8Scale, FP8_1_AnInfiniteQuotient_IsTheLargestFloat) {
  EXPECT_EQ(scale_after({1e-40f}), kLargest);  // 448 / 1e-40 = 4.48e42
  EXPECT_EQ(scale_after({0x1p-149f}), kLargest);
  // The threshold is 448 / 3.4028e38 = 1.3166e-36, of E5M2 57344 / 3.4028e38 = 1.6852e-34.
  EXPECT_EQ(scale_after({1.3165e-36f}), kLargest);
  EXPECT_LT(scale_after({1.3167e-36f}), kLargest);
  EXPECT_EQ(scale_after({1.6851e-34f}, 1, 4, 0, 57344), kLargest);
  EXPECT_LT(scale_after({1.6853e-34f}, 1, 4, 0, 57344), kLargest);
}

TEST_F(Fp8Scale, FP8_1_AZeroTensor_StaysExactlyZero) {
  float scale = scale_after({0, 0, 0}), amax = 0;
  std::vector<float> x(9, 0.0f);
  std::vector<std::uint8_t> codes(9, 0xFF);
  std::vector<double> counts(2, 0.0), control = control_with({});
  run_kernel(*backend_, quantize_kernel(), quantize_problem(9, Format::fp32, Format::fp8_e4m3, false),
             {x.data(), &scale, codes.data(), &amax, counts.data(), control.data()});
  EXPECT_EQ(codes, std::vector<std::uint8_t>(9, 0));
  EXPECT_EQ(counts, std::vector<double>(2, 0.0));
}

// cases.md FP8-2
TEST_F(Fp8Scale, FP8_2_NextScaleOfAWindowWithMaximum10_Is44_8) { EXPECT_EQ(scale_after({10}), 44.8f); }

TEST_F(Fp8Scale, TheHistory_ForgetsAfterItsLength) {
  // Length 2: the maximum of {8, 4} is 8, of {4, 2} it is 4.
  EXPECT_EQ(scale_after({8, 4}, 1, 2), 56);
  EXPECT_EQ(scale_after({8, 4, 2}, 1, 2), 112);
}

TEST_F(Fp8Scale, AnInfinity_FreezesTheScaleUntilItHasLeftTheHistory) {
  EXPECT_EQ(scale_after({1, kInf, 2, 4, 7}), 448);    // the infinity is the oldest of four
  EXPECT_EQ(scale_after({1, kInf, 2, 4, 7, 7}), 64);  // 448 / 7
}

TEST_F(Fp8Scale, TheMutantsHarness_PassesWithoutADefect) {
  EXPECT_TRUE(mutant_passes([](const Plan& sound, const Launch& launch) { sound.run(launch); }));
}

TEST_F(Fp8Scale, Mutant_HistoryDoesNotMove_IsCaught) {
  EXPECT_FALSE(mutant_passes([&](const Plan& sound, const Launch& launch) {
    const std::vector<float> history = values(launch, 1, kTensors * kLength);
    sound.run(launch);
    std::copy(history.begin() + kTensors, history.end(), static_cast<float*>(launch.operands[1]) + kTensors);
  }));
}

TEST_F(Fp8Scale, Mutant_OldestRowLeftOut_IsCaught) {
  EXPECT_FALSE(mutant_passes([&](const Plan& sound, const Launch& launch) {
    std::vector<float> scale = values(launch, 3, kTensors), history = values(launch, 1, kTensors * kLength);
    sound.run(launch);
    const std::vector<void*> shorter = {launch.operands[0], history.data(), launch.operands[2], scale.data(),
                                        launch.operands[4]};
    backend_->prepare(fp8_scale_problem(kTensors, kLength - 1, 0))->run({.operands = shorter});
    std::copy(scale.begin(), scale.end(), static_cast<float*>(launch.operands[3]));
  }));
}

TEST_F(Fp8Scale, Mutant_NaNInTheHistoryIgnored_IsCaught) {
  EXPECT_FALSE(mutant_passes([&](const Plan& sound, const Launch& launch) {
    auto* history = static_cast<float*>(launch.operands[1]);
    for (int i = 0; i < kTensors * kLength; ++i)
      if (std::isnan(history[i])) history[i] = 0;
    sound.run(launch);
  }));
}

TEST_F(Fp8Scale, Mutant_InfiniteQuotientNotClamped_IsCaught) {
  EXPECT_FALSE(mutant_passes([&](const Plan& sound, const Launch& launch) {
    sound.run(launch);
    auto* scale = static_cast<float*>(launch.operands[3]);
    for (int t = 0; t < kTensors; ++t)
      if (scale[t] == kLargest) scale[t] = kInf;
  }));
}

TEST_F(Fp8Scale, Mutant_MarginDropped_IsCaught) {
  const auto without = backend_->prepare(fp8_scale_problem(kTensors, kLength, 0));
  EXPECT_FALSE(mutant_passes([&](const Plan&, const Launch& launch) { without->run(launch); }, /*margin=*/1));
}

}  // namespace
}  // namespace mixroof
