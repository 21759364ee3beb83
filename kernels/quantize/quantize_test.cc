// Mutants that these tests catch: the last element not encoded; amax of the last chunk lost; a window's earlier amax
// overwritten; counts written instead of added to; the last micro-batch's amax taken for the window's.
#include "kernels/quantize/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/numeric/codec.h"
#include "kernels/kernel_test.h"

namespace mixroof {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kTwoHundred = 200;

struct Quantized {
  std::vector<std::uint8_t> codes;
  float amax = 0;
  std::vector<double> counts = {0, 0};
  std::vector<double> control = control_with({});
};

class Quantize : public testing::Test {
 protected:
  Quantized quantize(std::vector<float> x, float scale, Format codes, std::optional<float> amax_before = std::nullopt) {
    const auto count = static_cast<std::int64_t>(x.size());
    Quantized q;
    q.codes.resize(x.size());
    q.amax = amax_before.value_or(kNan);
    run_kernel(*backend_, quantize_kernel(), quantize_problem(count, Format::fp32, codes, amax_before.has_value()),
               {x.data(), &scale, q.codes.data(), &q.amax, q.counts.data(), q.control.data()});
    return q;
  }

  std::unique_ptr<Plan> prepare(std::int64_t count, bool accumulate) {
    return backend_->prepare(quantize_problem(count, Format::bf16, Format::fp8_e4m3, accumulate));
  }

  /// Whether the check lets a mutant pass under each of three seeds.
  bool mutant_passes(std::int64_t count, bool accumulate, const Mutant& mutant) {
    const Problem problem = quantize_problem(count, Format::bf16, Format::fp8_e4m3, accumulate);
    for (const std::uint64_t seed : {1, 2, 3})
      if (!check_mutant(*backend_, quantize_kernel(), problem, mutant, {.seed = seed}).pass) return false;
    return true;
  }

  static constexpr std::int64_t kCount = 205;
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

TEST_F(Quantize, EveryCase_EqualsTheReference_OnEveryTarget) { expect_all_cases_pass(quantize_kernel(), *backend_); }

TEST_F(Quantize, FromEveryFormatAndInBothFp8Formats_EqualsTheReference) {
  for (const Format x : {Format::fp32, Format::fp16, Format::bf16})
    for (const Format codes : {Format::fp8_e4m3, Format::fp8_e5m2}) {
      const CheckResult result = check_kernel(quantize_kernel(), quantize_problem(20011, x, codes, true), *backend_);
      EXPECT_TRUE(result.pass) << name(x) << " to " << name(codes) << ": " << result.detail;
    }
}

TEST(QuantizeCost, CountsOneFlopAnElementAndEachByteOnce) {
  const Cost cost = quantize_kernel().cost(quantize_problem(1000, Format::bf16, Format::fp8_e5m2, false));
  EXPECT_EQ(cost.useful_flops[static_cast<std::size_t>(Format::fp32)], 1000);
  EXPECT_EQ(cost.total_useful_flops(), 1000);
  EXPECT_EQ(cost.bytes_read, 2000 + 4 + 2 * 8 + 32 * 8);     // x, scale, counts, control
  EXPECT_EQ(cost.bytes_written, 1000 + 4 + 2 * 8 + 32 * 8);  // codes, amax, counts, control
  // With accumulate the old amax is read too.
  EXPECT_EQ(quantize_kernel().cost(quantize_problem(1000, Format::bf16, Format::fp8_e5m2, true)).bytes_read,
            cost.bytes_read + 4);
}

TEST(QuantizeProblem, ImpossibleOnes_AreRefused) {
  EXPECT_THROW(quantize_problem(-1, Format::bf16, Format::fp8_e4m3, false), UsageError);
  EXPECT_THROW(quantize_problem(1, Format::bf16, Format::bf16, false), UsageError);
}

TEST_F(Quantize, NUM1_OverflowsAndUnderflows_AreCountedAndNaNStays) {
  const Quantized q =
      quantize({447, 448, 449, 464, 465, 480, 1000, -1000, kNan, 0x1p-10f, 0x1.0007p-10f, 0x1.8p-9f, 0.0f}, 1.0f,
               Format::fp8_e4m3);
  // 447, 448, 449, 464 round to 448 = 0x7E, the rest saturate to it; 2^-10 ties to zero, above it 2^-9 = 0x01; 1.5 ·
  // 2^-9 ties to the even 2^-8 = 0x02.
  const std::vector<std::uint8_t> expected = {0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0x7E,
                                              0xFE, 0x7F, 0x00, 0x01, 0x02, 0x00};
  EXPECT_EQ(q.codes, expected);
  EXPECT_EQ(q.counts, (std::vector<double>{6, 1}));  // above 448: 449, 464, 465, 480, ±1000; to zero: 2^-10, not 0
  EXPECT_TRUE(std::isnan(q.amax));
  EXPECT_EQ(slot(q.control.data(), Slot::found_inf), 1);
}

TEST_F(Quantize, Infinities_SaturateAndRaiseFoundInf) {
  const Quantized q = quantize({1, -kInf, 2, kInf}, 4.0f, Format::fp8_e5m2);
  EXPECT_EQ(q.codes, (std::vector<std::uint8_t>{0x44, 0xFB, 0x48, 0x7B}));  // 4, -57344, 8, 57344
  EXPECT_EQ(q.amax, kInf);
  EXPECT_EQ(q.counts[0], 2);
  EXPECT_EQ(slot(q.control.data(), Slot::found_inf), 1);
}

TEST_F(Quantize, FiniteInput_LeavesFoundInfAsItWas) {
  EXPECT_EQ(slot(quantize({1, 2}, 1.0f, Format::fp8_e4m3).control.data(), Slot::found_inf), 0);
}

TEST_F(Quantize, ANonFiniteValue_IsFoundWhereverItStands) {
  for_each_target([&] {
    for (const std::size_t count : {1, 7, 8, 17, 33, 70})
      for (std::size_t at = 0; at < count; ++at) {
        std::vector<float> x(count, 1.0f);
        x[at] = at % 2 ? kNan : -kInf;
        const Quantized q = quantize(x, 1.0f, Format::fp8_e4m3);
        EXPECT_EQ(slot(q.control.data(), Slot::found_inf), 1);
        EXPECT_EQ(std::isnan(q.amax), at % 2 == 1);
      }
  });
}

TEST_F(Quantize, NaN_WinsOverInfinityInAmax_InEitherOrder) {
  EXPECT_TRUE(std::isnan(quantize({kNan, kInf}, 1.0f, Format::fp8_e4m3).amax));
  EXPECT_TRUE(std::isnan(quantize({kInf, kNan}, 1.0f, Format::fp8_e4m3).amax));
  EXPECT_TRUE(std::isnan(quantize({3}, 1.0f, Format::fp8_e4m3, kNan).amax));
}

TEST_F(Quantize, AProductBelowTheSubnormals_CountsAsBecomingZero) {
  // 1e-30 · 1e-20 is zero in fp32 already.
  EXPECT_EQ(quantize({1e-30f, 0.0f}, 1e-20f, Format::fp8_e5m2).counts, (std::vector<double>{0, 1}));
}

TEST_F(Quantize, AnEmptyTensor_HasAmaxZero) {
  EXPECT_EQ(quantize({}, 1.0f, Format::fp8_e4m3).amax, 0);
  EXPECT_EQ(quantize({}, 1.0f, Format::fp8_e4m3, 3.0f).amax, 3);
}

// The amax of a window is the maximum over its micro-batches, 3, 10, 2, 1.
TEST_F(Quantize, FP8_2_AmaxOfAWindow_IsTheLargestOfItsMicroBatches) {
  float amax = quantize({3, -1}, 1.0f, Format::fp8_e4m3).amax;
  for (const float magnitude : {-10.0f, 2.0f, 1.0f})
    amax = quantize({magnitude, 0.5f}, 1.0f, Format::fp8_e4m3, amax).amax;
  EXPECT_EQ(amax, 10.0f);
  // Its scale, 44.8, takes a 10 without saturating; the last micro-batch's (448) and the mean's (112) do not.
  EXPECT_EQ(quantize({10}, 448.0f / amax, Format::fp8_e4m3).counts[0], 0);
  EXPECT_EQ(quantize({10}, 448.0f / 1.0f, Format::fp8_e4m3).counts[0], 1);
  EXPECT_EQ(quantize({10}, 448.0f / 4.0f, Format::fp8_e4m3).counts[0], 1);
}

// Current scaling: the scale of the very values, kept where they give none.
class CurrentQuantize : public testing::Test {
 protected:
  struct Result {
    double scale;
    std::vector<double> codes, counts, scale_counts;
    double found_inf;
  };
  Result quantize(const std::vector<double>& x, double scale_before = 1) {
    const Problem problem = quantize_current_problem(static_cast<std::int64_t>(x.size()), Format::fp32, Format::fp8_e4m3);
    const auto after = run_on(*backend_, quantize_kernel(), problem, {x, {scale_before}, {}, {0, 0}, {0, 0}, control_with({})});
    return {after[1][0], after[2], after[3], after[4], slot(after[5].data(), Slot::found_inf)};
  }
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

TEST_F(CurrentQuantize, TheLargestValue_TakesTheLargestCode) {
  for_each_target([&] {
    std::vector<double> x(5000, 0.25);
    x[4321] = -3.5;
    const Result q = quantize(x);
    EXPECT_EQ(q.scale, 128);
    EXPECT_EQ(q.codes[4321], -448);
    EXPECT_EQ(q.codes[0], 32);
    EXPECT_EQ(q.counts, (std::vector<double>{0, 0}));
    EXPECT_EQ(q.scale_counts, (std::vector<double>{0, 0}));
  });
}

TEST_F(CurrentQuantize, FP8_1_ZeroTinyAndNonFiniteValues_KeepOrClampTheScale) {
  const Result zeros = quantize({0, 0, 0}, 16);
  EXPECT_EQ(zeros.scale, 16);
  EXPECT_EQ(zeros.codes, (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(zeros.scale_counts, (std::vector<double>{1, 0}));
  const Result tiny = quantize({1e-40, 0});
  EXPECT_EQ(tiny.scale, std::numeric_limits<float>::max());
  EXPECT_EQ(tiny.scale_counts, (std::vector<double>{0, 1}));
  for (const double value : {HUGE_VAL, std::nan("")}) {
    const Result broken = quantize({1, value}, 16);
    EXPECT_EQ(broken.scale, 16);
    EXPECT_EQ(broken.found_inf, 1);
    EXPECT_EQ(broken.codes[0], 16);
  }
}

TEST_F(CurrentQuantize, Mutant_TheScaleBeforeIsTaken_IsCaught) {
  const Problem problem = quantize_current_problem(kTwoHundred, Format::fp32, Format::fp8_e4m3);
  EXPECT_FALSE(check_mutant(*backend_, quantize_kernel(), problem, [](const Plan& sound, const Launch& launch) {
                 const float before = *floats(launch, 1);
                 sound.run(launch);
                 *floats(launch, 1) = before;
               }).pass);
}

TEST_F(Quantize, TheMutantsHarness_PassesWithoutADefect) {
  const auto plan = prepare(kCount, true);
  EXPECT_TRUE(mutant_passes(kCount, true, [&](const Launch& launch) { plan->run(launch); }));
}

TEST_F(Quantize, Mutant_LastElementNotEncoded_IsCaught) {
  const auto plan = prepare(kCount - 1, false);
  EXPECT_FALSE(mutant_passes(kCount, false, [&](const Launch& launch) { plan->run(launch); }));
}

TEST_F(Quantize, Mutant_AmaxOfTheLastChunkLost_IsCaught) {
  constexpr std::int64_t kTwoChunks = 2048;
  const auto plan = prepare(kTwoChunks, false);
  EXPECT_FALSE(mutant_passes(kTwoChunks, false, [&](const Launch& launch) {
    plan->run(launch);
    float amax = 0;
    for (int i = 0; i < kTwoChunks / 2; ++i)
      amax = std::max(amax, std::fabs(decode_bf16(static_cast<const std::uint16_t*>(launch.operands[0])[i])));
    *static_cast<float*>(launch.operands[3]) = amax;
  }));
}

TEST_F(Quantize, Mutant_EarlierAmaxOverwritten_IsCaught) {
  constexpr std::int64_t kFew = 7;  // few enough that the earlier maximum, 2.5, is the larger one
  const auto plan = prepare(kFew, false);
  EXPECT_FALSE(mutant_passes(kFew, true, [&](const Launch& launch) { plan->run(launch); }));
}

TEST_F(Quantize, Mutant_CountsOverwritten_IsCaught) {
  const auto plan = prepare(kCount, false);
  EXPECT_FALSE(mutant_passes(kCount, false, [&](const Launch& launch) {
    auto* counts = static_cast<double*>(launch.operands[4]);
    counts[0] = counts[1] = 0;
    plan->run(launch);
  }));
}

}  // namespace
}  // namespace mixroof
