// Whole updates of a small GPT-2 against the oracle's float64 values, by the tolerance rule of its README: a limit is
// 2 × max(yardstick of the variant, floor); elements whose first gradient is near zero may move by 2·lr per update.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "harness/execute/execution.h"
#include "harness/execute/oracle_test_support.h"
#include "harness/program/lower.h"

namespace mixroof {
namespace {

using nlohmann::json;

constexpr double kClearShare = 1e-3;  // of the largest first gradient of a tensor

struct OracleModel {
  OracleFile file;
  Model model;
  Batch batch;

  explicit OracleModel(const std::string& folder) : file(folder + "/gpt/gpt2") {
    const json& config = file.manifest().at("config");
    model = {.name = "oracle", .family = "gpt2", .layers = config.at("n_layer"), .width = config.at("d_model"),
             .heads = config.at("n_head"), .kv_heads = config.at("n_head"), .hidden = config.at("d_hidden"),
             .vocab = config.at("vocab"), .context = config.at("n_context"), .norm_eps = file.manifest().at("norm_eps")};
    batch = {.micro_batch = config.at("batch"), .seq = config.at("seq"), .micro_batches = 1};
  }

  LowerOptions options(const json& variant) const {
    const json& adamw = file.manifest().at("adamw");
    LowerOptions o;
    o.optimizer = {.beta1 = adamw.at("beta1"), .beta2 = adamw.at("beta2"), .eps = adamw.at("eps"),
                   .weight_decay = adamw.at("weight_decay")};
    o.update.learning_rate = adamw.at("lr");
    o.update.max_norm = variant.at("max_norm").is_null() ? 0.0 : variant.at("max_norm").get<double>();
    o.decay_all = variant.at("weight_decay_on") == "all";
    return o;
  }

  std::vector<std::vector<float>> parameters(const json& variant) const {
    const double factor = variant.at("multiply_2d_params0_by");
    std::vector<std::vector<float>> all;
    for (const ParameterSpec& spec : parameter_specs(model)) {
      const std::vector<double> values = file.values("params0/" + spec.name);
      std::vector<float> narrow(values.size());
      for (std::size_t i = 0; i < values.size(); ++i)
        narrow[i] = static_cast<float>(spec.is_matrix ? values[i] * factor : values[i]);
      all.push_back(std::move(narrow));
    }
    return all;
  }

  Window window(const json& micro_batches) const {
    Window window;
    for (const json& m : micro_batches) {
      const std::vector<double> tokens = file.values(m.at("tokens").get<std::string>());
      const std::vector<double> targets = file.values(m.at("targets").get<std::string>());
      window.push_back({{tokens.begin(), tokens.end()}, {targets.begin(), targets.end()}});
    }
    return window;
  }
};

double max_abs(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::fabs(value));
  return most;
}

/// NaN counts as an infinite difference.
double max_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(a[i] - b[i]);
    most = difference <= most ? most : std::isnan(difference) ? INFINITY : difference;
  }
  return most;
}

struct Floors {
  double loss = 5e-7, grads = 2e-6, moments = 4e-6, params_after1 = 2e-4, params_after3 = 4e-3;
};

class GptOracle : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::optional<std::string> folder = oracle_folder();
    if (!folder) GTEST_SKIP() << kNoOracle;
    oracle.emplace(*folder);
    variant = oracle->file.manifest().at("variants").at(GetParam());
    yardstick = variant.at("yardsticks").at("fp32");
  }

  /// Every gradient, also those whose values are not stored: [l2 norm, sum, largest magnitude, Σ a[i]·(1 + i mod 97)], to
  /// 1e-11 of the l2 norm × [1, √n, 1, 97·√n].
  void expect_gradient_fingerprints(Execution& run) {
    for (const Program::Parameter& p : run.program().parameters) {
      const std::vector<double> got = run.read(p.grad);
      const std::vector<double> expected = variant.at("fingerprints").at("grads").at(p.name);
      double squares = 0, sum = 0, weighted = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        squares += got[i] * got[i];
        sum += got[i];
        weighted += got[i] * static_cast<double>(1 + i % 97);
      }
      const double norm = expected[0], root = std::sqrt(static_cast<double>(got.size())), share = 1e-11;
      EXPECT_NEAR(std::sqrt(squares), norm, share * norm) << p.name;
      EXPECT_NEAR(sum, expected[1], share * norm * root) << p.name;
      EXPECT_NEAR(max_abs(got), expected[2], share * norm) << p.name;
      EXPECT_NEAR(weighted, expected[3], share * norm * 97 * root) << p.name;
      ++compared_tensors;
    }
  }

  double limit(double floor, double measured) const { return 2 * std::max(floor, measured); }

  void expect_gradients(Execution& run) {
    const double allowed = limit(floors.grads, yardstick.at("grads").at("max_rel_of_worst_tensor"));
    for (const Program::Parameter& p : run.program().parameters) {
      const std::string name = GetParam() + "/grads/" + p.name;
      if (!oracle->file.has_array(name)) continue;
      first_grads[p.name] = oracle->file.values(name);
      const std::vector<double>& expected = first_grads[p.name];
      const double scale = max_abs(expected);
      // The key third of c_attn.bias has gradient 0 in theory and noise in practice: judged by the whole tensor's largest.
      EXPECT_LE(max_difference(run.read(p.grad), expected), allowed * scale) << p.name;
      ++compared_tensors;
    }
  }

  void expect_state(Execution& run, int update, double learning_rate) {
    const json& state = yardstick.at("state_after").at(std::to_string(update));
    const double floor = update == 1 ? floors.params_after1 : floors.params_after3;
    const double clear_limit = limit(floor, state.at("params_clear").at("max_abs_over_lr")) * learning_rate;
    const double rough_limit = 2 * learning_rate * update;
    for (const Program::Parameter& p : run.program().parameters) {
      const std::string prefix = fmt::format("{}/after{}/", GetParam(), update);
      expect_moment(run, p.moment1, prefix + "moment1/" + p.name, state.at("moment1").at("max_rel"));
      expect_moment(run, p.moment2, prefix + "moment2/" + p.name, state.at("moment2").at("max_rel"));
      if (!oracle->file.has_array(prefix + "params/" + p.name) || !first_grads.contains(p.name)) continue;
      const std::vector<double> expected = oracle->file.values(prefix + "params/" + p.name), got = run.read(p.param);
      const std::vector<double>& grads = first_grads[p.name];
      const double clear = kClearShare * max_abs(grads);
      for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_LE(std::fabs(got[i] - expected[i]), std::fabs(grads[i]) >= clear ? clear_limit : rough_limit)
            << p.name << "[" << i << "] after update " << update;
      ++compared_tensors;
    }
  }

  void expect_moment(Execution& run, TensorId moment, const std::string& name, double measured) {
    if (!oracle->file.has_array(name)) return;
    const std::vector<double> expected = oracle->file.values(name);
    EXPECT_LE(max_difference(run.read(moment), expected), limit(floors.moments, measured) * max_abs(expected)) << name;
    ++compared_tensors;
  }

  void run_variant(Backend& backend) {
    Execution run(lower(oracle->model, find_recipe("fp32"), oracle->batch, backend.target(), oracle->options(variant)), backend,
                  Placement::arena);
    run.initialize(oracle->parameters(variant), 1.0);
    const double learning_rate = oracle->file.manifest().at("adamw").at("lr");
    const json& windows = variant.at("windows");
    for (std::size_t u = 0; u < windows.size(); ++u) {
      const Window window = oracle->window(windows[u]);
      EXPECT_EQ(effective_tokens(window), variant.at("effective_tokens")[u].get<std::int64_t>());
      run.run_update(window);
      const UpdateOutcome outcome = run.outcome();
      const double loss = variant.at("loss")[u], norm = variant.at("grad_norm")[u];
      EXPECT_TRUE(outcome.applied);
      EXPECT_NEAR(outcome.loss, loss, limit(floors.loss, yardstick.at("loss_rel_diff")[u]) * loss);
      EXPECT_NEAR(outcome.grad_norm, norm, limit(floors.loss, yardstick.at("grad_norm_rel_diff")[u]) * norm);
      EXPECT_NEAR(outcome.clip_coefficient, variant.at("clip_coefficient")[u].get<double>(), 1e-6);
      if (u == 0) expect_gradients(run);
      if (u == 0 && backend.facts().backend == "reference") expect_gradient_fingerprints(run);
      if (u == 0 || u == 2) expect_state(run, static_cast<int>(u) + 1, learning_rate);
    }
    EXPECT_GE(compared_tensors, GetParam() == "single" ? 20 : 0);
  }

  std::optional<OracleModel> oracle;
  json variant, yardstick;
  Floors floors;
  std::map<std::string, std::vector<double>> first_grads;
  int compared_tensors = 0;
};

TEST_P(GptOracle, Fp32UpdatesOnTheCpu_MatchLossGradientsParametersAndMoments) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(0);
  run_variant(*backend);
}

TEST_P(GptOracle, DoubleReference_MatchesToRoundingInDouble) {
  const std::unique_ptr<Backend> backend = make_reference_backend();
  // Gradients to 1e-11 of the largest; arrays that are stored as float32 to 1e-7 (half of each: limit() doubles).
  floors = {.loss = 5e-13, .grads = 5e-8, .moments = 5e-8, .params_after1 = 1e-4, .params_after3 = 1e-4};
  yardstick = json::parse(R"({"loss_rel_diff": [0,0,0], "grad_norm_rel_diff": [0,0,0],
    "grads": {"max_rel_of_worst_tensor": 0}, "state_after": {
      "1": {"params_clear": {"max_abs_over_lr": 0}, "moment1": {"max_rel": 0}, "moment2": {"max_rel": 0}},
      "3": {"params_clear": {"max_abs_over_lr": 0}, "moment1": {"max_rel": 0}, "moment2": {"max_rel": 0}}}})");
  if (GetParam() == "single") floors.grads = 5e-12;
  run_variant(*backend);
}

INSTANTIATE_TEST_SUITE_P(Variants, GptOracle, testing::Values("single", "masked", "clip", "decay_all", "sharp"),
                         [](const auto& variant_info) { return variant_info.param; });

}  // namespace
}  // namespace mixroof
