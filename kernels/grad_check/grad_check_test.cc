// Mutants that these tests catch: the last gradient left out of the sum; squares in fp32; the sum of an earlier tensor
// overwritten; a non-finite gradient missed in the tail.
#include "kernels/grad_check/grad_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "harness/numeric/codec.h"
#include "kernels/kernel_test.h"

namespace mixroof {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class GradCheck : public testing::Test {
 protected:
  /// The control tensor after a check of `grad` (values, rounded to `format`).
  std::vector<double> check(const std::vector<float>& grad, Format format = Format::fp32, bool accumulate = false,
                            std::vector<double> control = control_with({})) {
    const auto count = static_cast<std::int64_t>(grad.size());
    std::vector<std::byte> codes(static_cast<std::size_t>(count * bytes_of(format)));
    encode(format, grad.data(), codes.data(), count);
    run_kernel(*backend_, grad_check_kernel(), grad_check_problem(count, format, accumulate),
               {codes.data(), control.data()});
    return control;
  }

  /// Whether `plan_for(count)` raises found_inf for one non-finite gradient, wherever it stands.
  bool notices_each_position(const std::function<std::unique_ptr<Plan>(std::int64_t)>& plan_for, float bad) {
    for (const std::int64_t count : {1, 5, 8, 17, 33, 70})
      for (std::int64_t at = 0; at < count; ++at) {
        std::vector<float> grad(static_cast<std::size_t>(count), 1.0f);
        grad[static_cast<std::size_t>(at)] = bad;
        std::vector<double> control = control_with({});
        const Problem problem = grad_check_problem(count, Format::fp32, false);
        run_plan(*backend_, grad_check_kernel(), problem, *plan_for(count), {grad.data(), control.data()});
        if (slot(control.data(), Slot::found_inf) != 1) return false;
      }
    return true;
  }

  bool mutant_passes(bool accumulate, const Mutant& mutant) {
    return check_mutant(*backend_, grad_check_kernel(), grad_check_problem(205, Format::fp32, accumulate), mutant).pass;
  }

  std::unique_ptr<Plan> prepare(std::int64_t count, bool accumulate = false) {
    return backend_->prepare(grad_check_problem(count, Format::fp32, accumulate));
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

TEST_F(GradCheck, EveryCase_AgreesWithTheReference_OnEveryTarget) {
  expect_all_cases_pass(grad_check_kernel(), *backend_);
}

TEST(GradCheckCost, CountsTwoFlopsAGradientAndEachByteOnce) {
  const Cost cost = grad_check_kernel().cost(grad_check_problem(1000, Format::bf16, true));
  EXPECT_EQ(cost.useful_flops[static_cast<std::size_t>(Format::fp32)], 2000);
  EXPECT_EQ(cost.total_useful_flops(), 2000);
  EXPECT_EQ(cost.bytes_read, 1000 * 2 + 32 * 8);  // gradients, control
  EXPECT_EQ(cost.bytes_written, 32 * 8);
}

TEST(GradCheckProblem, ANegativeCount_IsRefused) {
  EXPECT_THROW(grad_check_problem(-1, Format::fp32, false), UsageError);
}

// cases.md LS-5
TEST_F(GradCheck, LS5_AHundredGradientsOf1e20_HaveNorm1e21) {
  const std::vector<double> control = check(std::vector<float>(100, 1e20f));
  // √(100 · 1e20²) = 1e21; the sum 1e42 would overflow fp32. 1e20 is 1.0000000200408773e20 in fp32.
  EXPECT_NEAR(std::sqrt(slot(control.data(), Slot::grad_square_sum)), 1.0000000200408773e21, 1e21 * 1e-14);
  EXPECT_EQ(slot(control.data(), Slot::found_inf), 0);
}

TEST_F(GradCheck, LS5_OneInfinityAmongThem_IsFound) {
  std::vector<float> grad(100, 1e20f);
  grad[63] = kInf;
  EXPECT_EQ(slot(check(grad).data(), Slot::found_inf), 1);
}

TEST_F(GradCheck, LargestFiniteValues_AreNotTakenForInfinite) {
  const std::vector<float> grad(1000, std::numeric_limits<float>::max());
  EXPECT_EQ(slot(check(grad).data(), Slot::found_inf), 0);
}

TEST_F(GradCheck, OneNonFiniteGradient_IsFoundWhereverItStands) {
  for_each_target([&] {
    for (const float bad : {kInf, -kInf, kNan})
      EXPECT_TRUE(notices_each_position([&](std::int64_t count) { return prepare(count); }, bad)) << bad;
  });
}

TEST_F(GradCheck, OneNonFiniteGradientIn16Bits_IsFound) {
  for (const Format format : {Format::fp16, Format::bf16})
    for (const float bad : {kInf, -kInf, kNan}) {
      std::vector<float> grad(1500, 1.0f);
      grad[1498] = bad;
      EXPECT_EQ(slot(check(grad, format).data(), Slot::found_inf), 1) << name(format) << " " << bad;
    }
}

TEST_F(GradCheck, Accumulate_AddsToTheSumOfEarlierTensors) {
  const std::vector<double> before = control_with({{Slot::grad_square_sum, 100.0}});
  EXPECT_EQ(slot(check({3, 4}, Format::fp32, true, before).data(), Slot::grad_square_sum), 125.0);  // 100 + 9 + 16
  EXPECT_EQ(slot(check({3, 4}, Format::fp32, false, before).data(), Slot::grad_square_sum), 25.0);
}

TEST_F(GradCheck, AnEmptyTensor_HasSumZero) {
  const std::vector<double> before = control_with({{Slot::grad_square_sum, 100.0}});
  EXPECT_EQ(slot(check({}, Format::fp32, false, before).data(), Slot::grad_square_sum), 0.0);
  EXPECT_EQ(slot(check({}, Format::fp32, true, before).data(), Slot::grad_square_sum), 100.0);
}

TEST_F(GradCheck, FoundInfOfAnFp8Input_StaysRaised) {
  const std::vector<double> before = control_with({{Slot::found_inf, 1.0}});
  EXPECT_EQ(slot(check({1, 2}, Format::fp32, false, before).data(), Slot::found_inf), 1);
}

TEST_F(GradCheck, TheMutantsHarness_PassesWithoutADefect) {
  const auto plan = prepare(205, true);
  EXPECT_TRUE(mutant_passes(true, [&](const Launch& launch) { plan->run(launch); }));
}

TEST_F(GradCheck, Mutant_LastGradientLeftOut_IsCaught) {
  const auto plan = prepare(204);
  EXPECT_FALSE(mutant_passes(false, [&](const Launch& launch) { plan->run(launch); }));
}

TEST_F(GradCheck, Mutant_EarlierSumOverwritten_IsCaught) {
  const auto plan = prepare(205, false);
  EXPECT_FALSE(mutant_passes(true, [&](const Launch& launch) { plan->run(launch); }));
}

TEST_F(GradCheck, Mutant_SquaresInFp32_IsCaught) {
  EXPECT_FALSE(mutant_passes(false, [](const Launch& launch) {
    const auto* grad = static_cast<const float*>(launch.operands[0]);
    float sum = 0;
    for (int i = 0; i < 205; ++i) sum += grad[i] * grad[i];
    slot(static_cast<double*>(launch.operands[1]), Slot::grad_square_sum) = sum;
  }));
}

TEST_F(GradCheck, Mutant_NonFiniteInTheTailMissed_IsCaught) {
  const auto without_tail = [&](std::int64_t count) -> std::unique_ptr<Plan> { return prepare(count - count % 8); };
  EXPECT_FALSE(notices_each_position(without_tail, kInf));
}

TEST(GradCheckReference, FoundInfOfAnFp8Input_StaysRaised) {
  std::vector<double> grad = {1, 2}, control = control_with({{Slot::found_inf, 1.0}});
  run_reference(grad_check_kernel(), grad_check_problem(2, Format::fp32, false), {&grad, &control});
  EXPECT_EQ(slot(control.data(), Slot::found_inf), 1);
}

}  // namespace
}  // namespace mixroof
