// Whole updates of the oracle's small models against its float64 values, by the tolerance rule of its README: a limit is
// 2 × max(yardstick of the variant, floor); elements whose first gradient is near zero may move by 2·lr per update.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>

#include "harness/execute/oracle_model.h"
#include "harness/execute/oracle_test_support.h"

namespace mixroof {
namespace {

using nlohmann::json;

constexpr double kClearShare = 1e-3;  // of the largest first gradient of a tensor

struct Tested {
  std::string stem, variant;
};

/// Every variant of every model of the folder; one empty entry without a folder.
std::vector<Tested> tested_variants() {
  const std::optional<std::string> folder = oracle_folder();
  std::vector<std::string> stems;
  if (folder && std::filesystem::is_directory(*folder + "/gpt"))
    for (const auto& entry : std::filesystem::directory_iterator(*folder + "/gpt"))
      if (entry.path().extension() == ".json") stems.push_back((entry.path().parent_path() / entry.path().stem()).string());
  std::sort(stems.begin(), stems.end());
  std::vector<Tested> all;
  for (const std::string& stem : stems)
    for (const std::string& variant : OracleModel(stem).variant_names()) all.push_back({stem, variant});
  if (all.empty()) all.push_back({});
  return all;
}

std::string test_name(const testing::TestParamInfo<Tested>& info) {
  const std::string model = std::filesystem::path(info.param.stem).filename().string();
  return model.empty() ? "no_oracle" : model + "_" + info.param.variant;
}

double max_abs(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::fabs(value));
  return most;
}

/// NaN counts as an infinite difference.
double max_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::fabs(a[i] - b[i]);
    most = difference <= most ? most : std::isnan(difference) ? INFINITY : difference;
  }
  return most;
}

/// Every number of a tree.
void set_to_zero(json& tree) {
  if (tree.is_number()) tree = 0.0;
  if (tree.is_structured())
    for (json& child : tree) set_to_zero(child);
}

struct Floors {
  double loss = 5e-7, grads = 2e-6, moments = 4e-6, params_after1 = 2e-4, params_after3 = 4e-3;
};

class GptOracle : public testing::TestWithParam<Tested> {
 protected:
  void SetUp() override {
    if (GetParam().stem.empty()) GTEST_SKIP() << kNoOracle;
    oracle.emplace(GetParam().stem);
    variant = oracle->variant(GetParam().variant);
    expected = variant.expected;
    yardstick = expected.at("yardsticks").at("fp32");
  }

  double limit(double floor, double measured) const { return 2 * std::max(floor, measured); }

  /// Calls check(tensor of the program, part of it that the oracle has an array for).
  void for_each_part(const std::function<void(const Program::Parameter&, const OraclePart&)>& check) {
    for (std::size_t p = 0; p < oracle->parts().size(); ++p)
      for (const OraclePart& part : oracle->parts()[p]) check(run->program().parameters[p], part);
  }

  std::vector<double> read(TensorId tensor, const OraclePart& part) {
    const std::vector<double> whole = run->read(tensor);
    return {whole.begin() + part.offset, whole.begin() + part.offset + part.count};
  }

  /// Every gradient, also those whose values are not stored: [l2 norm, sum, largest magnitude, Σ a[i]·(1 + i mod 97)], to
  /// 1e-11 of the l2 norm × [1, √n, 1, 97·√n].
  void expect_gradient_fingerprints() {
    for_each_part([&](const Program::Parameter& p, const OraclePart& part) {
      const std::vector<double> got = read(p.grad, part);
      const std::vector<double> print = expected.at("fingerprints").at("grads").at(part.name);
      double squares = 0, sum = 0, weighted = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        squares += got[i] * got[i];
        sum += got[i];
        weighted += got[i] * static_cast<double>(1 + i % 97);
      }
      const double norm = print[0], root = std::sqrt(static_cast<double>(got.size())), share = 1e-11;
      EXPECT_NEAR(std::sqrt(squares), norm, share * norm) << part.name;
      EXPECT_NEAR(sum, print[1], share * norm * root) << part.name;
      EXPECT_NEAR(max_abs(got), print[2], share * norm) << part.name;
      EXPECT_NEAR(weighted, print[3], share * norm * 97 * root) << part.name;
      ++compared_fingerprints;
    });
  }

  void expect_gradients() {
    const double allowed = limit(floors.grads, yardstick.at("grads").at("max_rel_of_worst_tensor"));
    for_each_part([&](const Program::Parameter& p, const OraclePart& part) {
      const std::string name = variant.name + "/grads/" + part.name;
      if (!oracle->file().has_array(name)) return;
      const std::vector<double>& grads = first_grads[part.name] = oracle->file().values(name);
      // The key third of c_attn.bias has gradient 0 in theory and noise in practice: judged by the whole tensor's largest.
      EXPECT_LE(max_difference(read(p.grad, part), grads), allowed * max_abs(grads)) << part.name;
      ++compared_tensors;
    });
  }

  void expect_state(int update, double learning_rate) {
    const json& state = yardstick.at("state_after").at(std::to_string(update));
    const double floor = update == 1 ? floors.params_after1 : floors.params_after3;
    const double clear_limit = limit(floor, state.at("params_clear").at("max_abs_over_lr")) * learning_rate;
    const double rough_limit = 2 * learning_rate * update;
    const std::string prefix = fmt::format("{}/after{}/", variant.name, update);
    for_each_part([&](const Program::Parameter& p, const OraclePart& part) {
      expect_moment(p.moment1, part, prefix + "moment1/", state.at("moment1").at("max_rel"));
      expect_moment(p.moment2, part, prefix + "moment2/", state.at("moment2").at("max_rel"));
      if (!oracle->file().has_array(prefix + "params/" + part.name) || !first_grads.contains(part.name)) return;
      const std::vector<double> params = oracle->file().values(prefix + "params/" + part.name), got = read(p.param, part);
      const std::vector<double>& grads = first_grads[part.name];
      const double clear = kClearShare * max_abs(grads);
      for (std::size_t i = 0; i < params.size(); ++i)
        ASSERT_LE(std::fabs(got[i] - params[i]), std::fabs(grads[i]) >= clear ? clear_limit : rough_limit)
            << part.name << "[" << i << "] after update " << update;
      ++compared_tensors;
    });
  }

  void expect_moment(TensorId moment, const OraclePart& part, const std::string& prefix, double measured) {
    if (!oracle->file().has_array(prefix + part.name)) return;
    const std::vector<double> moments = oracle->file().values(prefix + part.name);
    EXPECT_LE(max_difference(read(moment, part), moments), limit(floors.moments, measured) * max_abs(moments))
        << prefix + part.name;
    ++compared_tensors;
  }

  void run_variant(std::unique_ptr<Backend> chosen) {
    backend = std::move(chosen);
    const bool is_reference = backend->facts().backend == "reference";
    run.emplace(lower(oracle->model(), find_recipe("fp32"), variant.batch, backend->target(), variant.options), *backend,
                Placement::arena);
    run->initialize(variant.parameters, 1.0);
    for (std::size_t u = 0; u < variant.windows.size(); ++u) {
      const Window& window = variant.windows[u];
      EXPECT_EQ(effective_tokens(window), expected.at("effective_tokens")[u].get<std::int64_t>());
      run->run_update(window);
      const UpdateOutcome outcome = run->outcome();
      const double loss = expected.at("loss")[u], norm = expected.at("grad_norm")[u];
      EXPECT_TRUE(outcome.applied);
      EXPECT_NEAR(outcome.loss, loss, limit(floors.loss, yardstick.at("loss_rel_diff")[u]) * loss);
      EXPECT_NEAR(outcome.grad_norm, norm, limit(floors.loss, yardstick.at("grad_norm_rel_diff")[u]) * norm);
      EXPECT_NEAR(outcome.clip_coefficient, expected.at("clip_coefficient")[u].get<double>(), 1e-6);
      if (u == 0) expect_gradients();
      if (u == 0 && is_reference) expect_gradient_fingerprints();
      if (yardstick.at("state_after").contains(std::to_string(u + 1)))
        expect_state(static_cast<int>(u) + 1, variant.options.update.learning_rate);
    }
    // Losses and norms alone would be a weak test: the single variant has all gradients and much of the state stored.
    if (variant.name == "single") {
      EXPECT_GE(compared_tensors, 20);
    }
    if (is_reference) {
      EXPECT_GE(compared_fingerprints, 20);
    }
  }

  std::optional<OracleModel> oracle;
  OracleVariant variant;
  json expected, yardstick;
  std::unique_ptr<Backend> backend;
  std::optional<Execution> run;
  Floors floors;
  std::map<std::string, std::vector<double>> first_grads;
  int compared_tensors = 0, compared_fingerprints = 0;
};

TEST_P(GptOracle, Fp32UpdatesOnTheCpu_MatchLossGradientsParametersAndMoments) {
  run_variant(make_cpu_backend(0));
}

TEST_P(GptOracle, DoubleReference_MatchesToRoundingInDouble) {
  // Gradients to 1e-11 of the largest; arrays that are stored as float32 to 1e-7 (half of each: limit() doubles).
  floors = {.loss = 5e-13, .grads = 5e-8, .moments = 5e-8, .params_after1 = 1e-4, .params_after3 = 1e-4};
  set_to_zero(yardstick);
  const std::string stored = variant.name + "/grads/" + oracle->parts().front().front().name;
  if (oracle->file().has_array(stored) && oracle->file().dtype(stored) == "float64") floors.grads = 5e-12;
  run_variant(make_reference_backend());
}

INSTANTIATE_TEST_SUITE_P(Variants, GptOracle, testing::ValuesIn(tested_variants()), test_name);

}  // namespace
}  // namespace mixroof
