// Mutants that these tests catch: the decay dropped; bias correction of the next update; a skip ignored for one
// element; the last element not written; parameters rounded from the old master; unscaling forgotten.
#include "kernels/adamw/adamw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

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

/// One parameter, three moments' worth of state in doubles or floats.
template <typename T>
struct State {
  std::vector<T> param, m, v;
};

struct OracleCase {
  nlohmann::json row;
  AdamwConstants constants;
  std::vector<double> param0, grads;
  std::int64_t count = 0, updates = 0;

  OracleCase(const OracleFile& oracle, const nlohmann::json& entry)
      : row(entry),
        constants{.beta1 = entry.at("beta1"),
                  .beta2 = entry.at("beta2"),
                  .eps = entry.at("eps"),
                  .weight_decay = entry.at("weight_decay")},
        param0(oracle.values(name() + ".params0")),
        grads(oracle.values(name() + ".grads")),
        count(static_cast<std::int64_t>(param0.size())),
        updates(entry.at("updates")) {}

  std::string name() const { return row.at("name"); }
  bool is_skipped(std::int64_t u) const {
    const auto skipped = row.at("skipped_updates").get<std::vector<std::int64_t>>();
    return std::find(skipped.begin(), skipped.end(), u) != skipped.end();
  }
  std::vector<double> control(std::int64_t u) const {
    const double rate =
        row.at("lr_per_update").is_null() ? row.at("lr").get<double>() : row.at("lr_per_update").at(u).get<double>();
    std::vector<double> control = control_of_update(row.at("optimizer_step_after").at(u), rate, constants);
    if (is_skipped(u)) slot(control.data(), Slot::apply) = 0;
    return control;
  }
  template <typename T>
  std::vector<T> grad(std::int64_t u) const {
    return {grads.begin() + u * count, grads.begin() + (u + 1) * count};
  }
};

/// Expects `got` to be near row `u` of an oracle array.
template <typename T>
void expect_row(const OracleFile& oracle, const std::string& array, std::int64_t u, const std::vector<T>& got,
                const Tolerance& tolerance) {
  const std::vector<double> all = oracle.values(array);
  const auto count = static_cast<std::int64_t>(got.size());
  expect_near({got.begin(), got.end()}, {all.begin() + u * count, all.begin() + (u + 1) * count}, tolerance,
              array + " update " + std::to_string(u));
}

TEST_F(Adamw, TheReference_EqualsTheOracleInDouble) {
  constexpr Tolerance kDouble{.relative = 1e-12, .of_largest = 1e-13};
  const auto oracle = open_oracle("adamw/adamw");
  if (!oracle) GTEST_SKIP() << kNoOracle;
  for (const auto& entry : oracle->manifest().at("cases")) {
    const OracleCase c(*oracle, entry);
    State<double> state{c.param0, std::vector<double>(c.param0.size()), std::vector<double>(c.param0.size())};
    for (std::int64_t u = 0; u < c.updates; ++u) {
      std::vector<double> grad = c.grad<double>(u), control = c.control(u);
      run_reference(adamw_kernel(), fp32(c.count, c.constants), {&grad, &state.param, &state.m, &state.v, &control});
      expect_row(*oracle, c.name() + ".params_f64", u, state.param, kDouble);
      expect_row(*oracle, c.name() + ".moment1_f64", u, state.m, kDouble);
      expect_row(*oracle, c.name() + ".moment2_f64", u, state.v, kDouble);
    }
  }
}

TEST_F(Adamw, TheCpuKernel_EqualsTheOracleInFloat) {
  constexpr Tolerance kFloat{.relative = 2e-6, .of_largest = 1e-6};
  const auto oracle = open_oracle("adamw/adamw");
  if (!oracle) GTEST_SKIP() << kNoOracle;
  for (const auto& entry : oracle->manifest().at("cases")) {
    const OracleCase c(*oracle, entry);
    const bool is_finite = entry.at("fp32_moment2_finite");
    for_each_target([&] {
      State<float> state{
          {c.param0.begin(), c.param0.end()}, std::vector<float>(c.param0.size()), std::vector<float>(c.param0.size())};
      bool reported = false;
      for (std::int64_t u = 0; u < c.updates; ++u) {
        std::vector<float> grad = c.grad<float>(u);
        std::vector<double> control = c.control(u);
        run(fp32(c.count, c.constants),
            {grad.data(), state.param.data(), state.m.data(), state.v.data(), control.data()});
        reported = reported || slot(control.data(), Slot::state_nonfinite) != 0;
        if (!is_finite) continue;  // g² overflows fp32: the update vanishes, and must be reported
        expect_row(*oracle, c.name() + ".params_f32", u, state.param, kFloat);
        expect_row(*oracle, c.name() + ".moment1_f32", u, state.m, kFloat);
        expect_row(*oracle, c.name() + ".moment2_f32", u, state.v, kFloat);
      }
      EXPECT_EQ(reported, !is_finite) << c.name();
    });
  }
}

TEST(AdamwClocks, ScheduleSkipsAndState_EqualTheOracleInDouble) {
  const auto oracle = open_oracle("scaling/clocks");
  if (!oracle) GTEST_SKIP() << kNoOracle;
  const nlohmann::json& c = oracle->manifest();
  const std::unique_ptr<Backend> backend = make_reference_backend();
  const UpdateConstants update{.beta1 = c.at("beta1"),
                               .beta2 = c.at("beta2"),
                               .learning_rate = c.at("base_lr"),
                               .dynamic_scale = true,
                               .growth = c.at("growth_factor"),
                               .backoff = c.at("backoff_factor"),
                               .growth_interval = c.at("growth_interval")};
  const AdamwConstants constants{
      .beta1 = c.at("beta1"), .beta2 = c.at("beta2"), .eps = c.at("eps"), .weight_decay = c.at("weight_decay")};
  std::vector<double> param = c.at("params"), m(param.size()), v(param.size());
  const auto count = static_cast<std::int64_t>(param.size());
  std::vector<double> control = control_with({{Slot::loss_scale, c.at("init_scale")}});
  const auto at = [&](Slot s) -> double& { return slot(control.data(), s); };
  for (std::size_t u = 0; u < c.at("after").size(); ++u) {
    const auto& after = c.at("after").at(u);
    const double scale = at(Slot::loss_scale);
    auto grad = c.at("unscaled_gradients").at(u).get<std::vector<double>>();
    for (double& g : grad) g *= scale;
    if (c.at("found_inf").at(u).get<int>() != 0) grad[0] = kInf;
    at(Slot::effective_tokens) = c.at("effective_tokens").at(u);
    run_kernel(*backend, grad_check_kernel(), grad_check_problem(count, Format::fp32, false),
               {grad.data(), control.data()});
    run_kernel(*backend, update_control_kernel(), decide_problem(update), {control.data()});
    // The oracle's schedule (linear from the first update after the peak) is none of ours: its rate is given.
    if (!after.at("learning_rate_used").is_null()) at(Slot::learning_rate) = after.at("learning_rate_used");
    run_kernel(*backend, adamw_kernel(),
               adamw_problem(count, Format::fp32, Format::fp32, false, Format::fp32, constants),
               {grad.data(), param.data(), m.data(), v.data(), control.data()});
    run_kernel(*backend, update_control_kernel(), advance_problem(update), {control.data()});

    EXPECT_EQ(at(Slot::updates_attempted), after.at("attempted").get<double>());
    EXPECT_EQ(at(Slot::updates_applied), after.at("applied").get<double>());
    EXPECT_EQ(at(Slot::updates_skipped), after.at("skipped").get<double>());
    EXPECT_EQ(at(Slot::tokens_consumed), after.at("tokens_consumed").get<double>());
    EXPECT_EQ(at(Slot::scale_used), after.at("scale_used").get<double>());
    EXPECT_EQ(at(Slot::loss_scale), after.at("scale_after").get<double>());
    const auto expect_state = [&](const char* key, const std::vector<double>& got) {
      const auto expected = after.at(key).get<std::vector<double>>();
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_NEAR(got[i], expected[i], 1e-12 * std::fabs(expected[i])) << key << u;
    };
    expect_state("params", param);
    expect_state("moment1", m);
    expect_state("moment2", v);
  }
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
