// Mutants that these tests catch: the decay dropped; bias correction of the next update; a skip ignored for one
// element; the last element not written; parameters rounded from the old master; unscaling forgotten.
#include "kernels/adamw/adamw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/numeric/codec.h"
#include "kernels/adamw/layout.h"
#include "kernels/grad_check/grad_check.h"
#include "kernels/kernel_test.h"
#include "kernels/update_control/update_control.h"

namespace mixroof {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// The control tensor of applied update `n` without loss scaling or clipping.
std::vector<double> control_of_update(double n, double rate, const AdamwConstants& c) {
  return control_with({{Slot::apply, 1},
                       {Slot::grad_factor, 1},
                       {Slot::learning_rate, rate},
                       {Slot::bias_correction1, 1 - std::pow(c.beta1, n)},
                       {Slot::bias_correction2, 1 - std::pow(c.beta2, n)}});
}

class Adamw : public testing::Test {
 protected:
  static Problem bf16_master(std::int64_t count, const AdamwConstants& constants = {}) {
    return adamw_problem(count, Format::bf16, Format::bf16, true, Format::fp32, constants);
  }
  static Problem fp32(std::int64_t count, const AdamwConstants& constants = {}) {
    return adamw_problem(count, Format::fp32, Format::fp32, false, Format::fp32, constants);
  }
  void run(const Problem& problem, const std::vector<void*>& operands) {
    run_kernel(*backend_, adamw_kernel(), problem, operands);
  }

  /// Whether the check lets a mutant of the 205-element problem with bf16 parameters and an fp32 master pass.
  bool mutant_passes(const Mutant& mutant) {
    return check_mutant(*backend_, adamw_kernel(), bf16_master(kCount), mutant).pass;
  }
  std::unique_ptr<Plan> prepare(const Problem& problem) { return backend_->prepare(problem); }

  static constexpr std::int64_t kCount = 205;
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

TEST_F(Adamw, EveryCase_AgreesWithTheReference_OnEveryTarget) { expect_all_cases_pass(adamw_kernel(), *backend_); }

TEST(AdamwCost, CountsSixteenFlopsAnElementAndEachByteOnce) {
  const Cost master = adamw_kernel().cost(adamw_problem(1000, Format::bf16, Format::bf16, true, Format::fp32, {}));
  EXPECT_EQ(master.useful_flops[static_cast<std::size_t>(Format::fp32)], 16000);
  EXPECT_EQ(master.bytes_read, 1000 * (2 + 4 + 4 + 4) + 32 * 8);     // gradient, master, moments; control
  EXPECT_EQ(master.bytes_written, 1000 * (2 + 4 + 4 + 4) + 32 * 8);  // parameter, master, moments; control
  const Cost plain = adamw_kernel().cost(adamw_problem(1000, Format::fp32, Format::fp32, false, Format::fp32, {}));
  EXPECT_EQ(plain.bytes_read, 1000 * 16 + 32 * 8);
  EXPECT_EQ(plain.bytes_written, 1000 * 12 + 32 * 8);
}

TEST(AdamwProblem, ANegativeCount_IsRefused) {
  EXPECT_THROW(adamw_problem(-1, Format::fp32, Format::fp32, false, Format::fp32, {}), UsageError);
}

TEST_F(Adamw, FirstUpdateOfOneWeight_IsTheOneWorkedOutByHand) {
  // p 1, g 2, lr 0.1, decay 0.5, beta 0.9 and 0.99, eps 0: m = 0.2, v = 0.04, m/0.1 = 2, √(v/0.01) = 2,
  // p = 1 · (1 - 0.05) - 0.1 · 2/2 = 0.85.
  const AdamwConstants constants{.beta1 = 0.9, .beta2 = 0.99, .eps = 0, .weight_decay = 0.5};
  float grad = 2, param = 1, m = 0, v = 0;
  std::vector<double> control = control_of_update(1, 0.1, constants);
  run(fp32(1, constants), {&grad, &param, &m, &v, control.data()});
  EXPECT_FLOAT_EQ(m, 0.2f);
  EXPECT_FLOAT_EQ(v, 0.04f);
  EXPECT_FLOAT_EQ(param, 0.85f);
  EXPECT_EQ(slot(control.data(), Slot::state_nonfinite), 0);
}

TEST_F(Adamw, LS3_ASkippedUpdate_LeavesEveryByteAsItWas) {  // cases.md LS-3
  const std::int64_t count = 1037;
  std::vector<std::uint16_t> grad(count, encode_bf16(kInf)), param(count, 0xABCD);
  std::vector<float> master(count, 0.1f), m(count, 0.2f), v(count, 0.3f);
  std::vector<double> control = control_of_update(1, 1e-3, {});
  slot(control.data(), Slot::apply) = 0;
  const auto param_before = param;
  const auto master_before = master, m_before = m, v_before = v;
  const auto control_before = control;
  run(bf16_master(count), {grad.data(), param.data(), master.data(), m.data(), v.data(), control.data()});
  EXPECT_TRUE(same_bytes(param, param_before));
  EXPECT_TRUE(same_bytes(master, master_before));
  EXPECT_TRUE(same_bytes(m, m_before));
  EXPECT_TRUE(same_bytes(v, v_before));
  EXPECT_TRUE(same_bytes(control, control_before));
}

TEST_F(Adamw, AnUpdateThatLeavesAnythingNonFinite_IsReported_WhereverItStands) {
  for_each_target([&] {
    for (const std::size_t at : {0u, 7u, 8u, 30u, 68u}) {
      std::vector<float> grad(69, 0.1f), param(69, 1.0f), m(69, 0.0f), v(69, 0.0f);
      grad[at] = 1e30f;  // finite, its square is not
      std::vector<double> control = control_of_update(1, 1e-3, {});
      run(fp32(69), {grad.data(), param.data(), m.data(), v.data(), control.data()});
      EXPECT_EQ(slot(control.data(), Slot::state_nonfinite), 1) << at;
    }
  });
}

TEST_F(Adamw, AMasterThatItsFp16ParameterCannotHold_IsReported) {
  const Problem problem = adamw_problem(1, Format::fp16, Format::fp16, true, Format::fp32, {.weight_decay = 0});
  for (const float value : {65519.0f, 65520.0f}) {  // 65520 is the tie that rounds to infinity
    std::uint16_t grad = 0, param = 0;
    float master = value, m = 0, v = 0;
    std::vector<double> control = control_of_update(1, 1e-3, {});
    run(problem, {&grad, &param, &master, &m, &v, control.data()});
    EXPECT_EQ(std::isinf(decode_fp16(param)), value == 65520.0f);
    EXPECT_EQ(slot(control.data(), Slot::state_nonfinite), value == 65520.0f ? 1 : 0);
  }
}

TEST_F(Adamw, OneWorkerAndTwo_GiveTheSameBits) {
  const std::int64_t count = 20011;
  const std::vector<std::vector<double>> inputs = make_inputs(adamw_kernel(), fp32(count), 3);
  std::vector<std::vector<float>> params;
  for (const int threads : {1, 2}) {
    const std::unique_ptr<Backend> backend = make_cpu_backend(threads);
    std::vector<std::vector<float>> t;
    for (std::size_t i = 0; i < 4; ++i) t.emplace_back(inputs[i].begin(), inputs[i].end());
    std::vector<double> control = inputs[4];
    run_kernel(*backend, adamw_kernel(), fp32(count),
               {t[0].data(), t[1].data(), t[2].data(), t[3].data(), control.data()});
    params.push_back(t[1]);
  }
  EXPECT_TRUE(same_bytes(params[0], params[1]));
}

/// Check, decision, optimizer and scale of one fp32 tensor, as an update runs them.
struct FullUpdate {
  Backend& backend;
  UpdateConstants constants;
  AdamwConstants adamw;
  std::vector<float> param, m, v;
  std::vector<double> control;

  FullUpdate(Backend& b, const UpdateConstants& c, const AdamwConstants& a, std::vector<float> start, double scale)
      : backend(b),
        constants(c),
        adamw(a),
        param(std::move(start)),
        m(param.size(), 0.0f),
        v(param.size(), 0.0f),
        control(control_with({{Slot::loss_scale, scale}})) {}

  void window(std::vector<float> scaled_grad, double effective_tokens = 100) {
    const auto count = static_cast<std::int64_t>(param.size());
    slot(control.data(), Slot::effective_tokens) = effective_tokens;
    run_kernel(backend, grad_check_kernel(), grad_check_problem(count, Format::fp32, false),
               {scaled_grad.data(), control.data()});
    run_kernel(backend, update_control_kernel(), decide_problem(constants), {control.data()});
    run_kernel(backend, adamw_kernel(), adamw_problem(count, Format::fp32, Format::fp32, false, Format::fp32, adamw),
               {scaled_grad.data(), param.data(), m.data(), v.data(), control.data()});
    run_kernel(backend, update_control_kernel(), advance_problem(constants), {control.data()});
  }
};

TEST_F(Adamw, LS2_AGradientThatIsInfiniteInEveryWindow_NeverMovesTheWeightsAndStopsAtTheFloor) {
  FullUpdate update(*backend_, {.dynamic_scale = true}, {}, {0.5f, -0.25f}, 65536);
  for (int i = 0; i < 17; ++i) {
    EXPECT_EQ(slot(update.control.data(), Slot::scale_exhausted), 0) << i;
    update.window({1, kInf});
  }
  EXPECT_EQ(slot(update.control.data(), Slot::loss_scale), 1);  // 65536 → 1 after 16
  EXPECT_EQ(slot(update.control.data(), Slot::scale_exhausted), 1);
  EXPECT_EQ(update.param, (std::vector<float>{0.5f, -0.25f}));
}

TEST_F(Adamw, LS3_AWindowWithOneOverflow_IsSkippedOnceAndTheNextIsClean) {
  FullUpdate update(*backend_, {.dynamic_scale = true}, {}, {0.5f}, 65536);
  // An infinity in the second of four micro-batches stays in the accumulated gradient.
  update.window({1 + kInf + 1 + 1});
  EXPECT_EQ(update.param[0], 0.5f);
  EXPECT_EQ(update.m[0], 0);
  for (int i = 0; i < 3; ++i) update.window({1});
  EXPECT_EQ(slot(update.control.data(), Slot::loss_scale), 32768);
  EXPECT_EQ(slot(update.control.data(), Slot::updates_skipped), 1);
  EXPECT_EQ(slot(update.control.data(), Slot::updates_applied), 3);
  EXPECT_LT(update.param[0], 0.5f);
}

TEST_F(Adamw, LS4_GradientsAreUnscaledOnceAndNotClippedBelowTheLimit) {
  for (const float scale : {65536.0f, 256.0f}) {
    FullUpdate update(*backend_, {.max_norm = 1}, {}, {0.0f, 0.0f}, scale);
    update.window({0.3f * scale, 0.4f * scale});
    EXPECT_NEAR(slot(update.control.data(), Slot::grad_norm), 0.5, 1e-7);
    // m = (1 - β1) · g with g as it truly is: not 1.526e-5 (clipped first), not 7.63e-6 (unscaled twice) of it.
    EXPECT_FLOAT_EQ(update.m[0], 0.03f);
    EXPECT_FLOAT_EQ(update.m[1], 0.04f);
  }
}

TEST_F(Adamw, LS5_AHundredGradientsOf1e20_BecomeTenthsAfterClipping) {
  FullUpdate update(*backend_, {.max_norm = 1}, {}, std::vector<float>(100, 1.0f), 1);
  std::vector<float> grad(100, 1e20f);
  update.window(grad);
  for (const float m : update.m) ASSERT_FLOAT_EQ(m, 0.1f * 0.1f);  // (1 - β1) · 0.1
  EXPECT_EQ(slot(update.control.data(), Slot::updates_applied), 1);

  const std::vector<float> before = update.param;
  grad[99] = kInf;
  update.window(grad);
  EXPECT_TRUE(same_bytes(update.param, before));
  EXPECT_EQ(slot(update.control.data(), Slot::updates_skipped), 1);
}

TEST_F(Adamw, LS5_ClippingGradientsNearTheLargestFloat_KeepsTheirBits) {
  // The factor 1 / 3e38 / 65536 is below fp32's subnormals' precision; applied in two steps it is not.
  FullUpdate update(*backend_, {.max_norm = 1}, {}, {0.0f}, 65536);
  update.window({3e38f});
  EXPECT_FLOAT_EQ(update.m[0], 0.1f);
}

// cases.md NUM-3: weight 1, 100 updates of -6e-4. A constant gradient makes every Adam step the learning rate.
TEST_F(Adamw, NUM3_SmallUpdates_AreLostInBf16AndKeptInTheMaster) {
  const AdamwConstants constants{.weight_decay = 0};
  std::uint16_t grad = encode_bf16(1.0f), lost = encode_bf16(1.0f), shown = lost;
  float master = 1.0f, m = 0, v = 0, lost_m = 0, lost_v = 0;
  for (int n = 1; n <= 100; ++n) {
    std::vector<double> control = control_of_update(n, 6e-4, constants);
    run(bf16_master(1, constants), {&grad, &shown, &master, &m, &v, control.data()});
    run(adamw_problem(1, Format::bf16, Format::bf16, false, Format::fp32, constants),
        {&grad, &lost, &lost_m, &lost_v, control.data()});
  }
  EXPECT_EQ(decode_bf16(lost), 1.0f);          // half the spacing below 1 is 2^-9 = 0.00195 > 6e-4
  EXPECT_NEAR(master, 0.9400020, 2e-6);        // 1 - 100 · 6e-4, rounded a hundred times
  EXPECT_EQ(decode_bf16(shown), 0.94140625f);  // 241 / 256
}

TEST_F(Adamw, NUM3_WeightDecayAndBeta2_VanishInBf16) {
  EXPECT_EQ(round_to(Format::bf16, 1 - 1e-6), 1.0);
  EXPECT_EQ(round_to(Format::bf16, 0.999), 1.0);
  // A decay of 1e-6 an update alone: lr 1e-5, decay 0.1, no gradient.
  std::uint16_t grad = 0, lost = encode_bf16(1.0f), m = 0, v = 0;
  float master = 1.0f, m32 = 0, v32 = 0;
  std::uint16_t shown = lost;
  for (int n = 1; n <= 100; ++n) {
    std::vector<double> control = control_of_update(n, 1e-5, {});
    run(adamw_problem(1, Format::bf16, Format::bf16, false, Format::bf16, {}), {&grad, &lost, &m, &v, control.data()});
    run(bf16_master(1), {&grad, &shown, &master, &m32, &v32, control.data()});
  }
  EXPECT_EQ(decode_bf16(lost), 1.0f);
  EXPECT_NEAR(master, 0.9999, 6e-6);  // (1 - 1e-6)^100; each rounding costs up to 2^-25
}

TEST_F(Adamw, TheMutantsHarness_PassesWithoutADefect) {
  const auto plan = prepare(bf16_master(kCount));
  EXPECT_TRUE(mutant_passes([&](const Launch& launch) { plan->run(launch); }));
}

TEST_F(Adamw, Mutant_DecayDropped_IsCaught) {
  const auto plan = prepare(bf16_master(kCount, {.weight_decay = 0}));
  EXPECT_FALSE(mutant_passes([&](const Launch& launch) { plan->run(launch); }));
}

TEST_F(Adamw, Mutant_LastElementNotWritten_IsCaught) {
  const auto plan = prepare(bf16_master(kCount - 1));
  EXPECT_FALSE(mutant_passes([&](const Launch& launch) { plan->run(launch); }));
}

TEST_F(Adamw, Mutant_BiasCorrectionOfTheNextUpdate_IsCaught) {
  const auto plan = prepare(bf16_master(kCount));
  EXPECT_FALSE(mutant_passes([&](const Launch& launch) {
    auto* control = static_cast<double*>(launch.operands[5]);
    const double correction = slot(control, Slot::bias_correction2);
    slot(control, Slot::bias_correction2) = 1 - std::pow(0.95, 4);
    plan->run(launch);
    slot(control, Slot::bias_correction2) = correction;
  }));
}

TEST_F(Adamw, Mutant_UnscalingForgotten_IsCaught) {
  const auto plan = prepare(bf16_master(kCount));
  EXPECT_FALSE(mutant_passes([&](const Launch& launch) {
    auto* control = static_cast<double*>(launch.operands[5]);
    const double factor = slot(control, Slot::grad_factor);
    slot(control, Slot::grad_factor) = 1;
    plan->run(launch);
    slot(control, Slot::grad_factor) = factor;
  }));
}

TEST_F(Adamw, Mutant_ParametersRoundedFromTheOldMaster_IsCaught) {
  const auto plan = prepare(bf16_master(kCount));
  EXPECT_FALSE(mutant_passes([&](const Launch& launch) {
    const auto* master = static_cast<const float*>(launch.operands[2]);
    const std::vector<float> old(master, master + kCount);
    plan->run(launch);
    encode(Format::bf16, old.data(), launch.operands[1], kCount);
  }));
}

TEST_F(Adamw, Mutant_SkipIgnoredForOneElement_IsCaught) {
  // The byte comparison of the skip test, on a defect.
  std::vector<float> grad(9, 1.0f), param(9, 1.0f), m(9, 0.0f), v(9, 0.0f);
  std::vector<double> skip = control_of_update(1, 1e-3, {}), apply = skip;
  slot(skip.data(), Slot::apply) = 0;
  run(fp32(9), {grad.data(), param.data(), m.data(), v.data(), skip.data()});
  EXPECT_TRUE(same_bytes(param, std::vector<float>(9, 1.0f)));
  run(fp32(1), {grad.data() + 8, param.data() + 8, m.data() + 8, v.data() + 8, apply.data()});
  EXPECT_FALSE(same_bytes(param, std::vector<float>(9, 1.0f)));
}

}  // namespace
}  // namespace mixroof
