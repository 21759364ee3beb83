// Gradients of whole windows against finite differences of the loss, both by the double-precision reference backend:
// the loss is the only thing that the two share, so a term missing from a backward pass shows in the tensor it belongs
// to.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "harness/execute/execution.h"
#include "harness/execute/initialization.h"
#include "harness/program/lower.h"

namespace mixroof {
namespace {

struct Tested {
  const char* name;
  const char* model;
  bool packed;
};

constexpr Tested kTested[] = {
    {"gpt2", "gpt2-tiny", false}, {"llama", "llama-tiny", false}, {"llama_packed", "llama-tiny", true}};

/// Two micro-batches of different effective tokens; packed rows hold two documents each.
Window masked_window(const Model& model, const Batch& batch) {
  std::mt19937_64 random(11);
  std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(model.vocab) - 1);
  Window window(static_cast<std::size_t>(batch.micro_batches));
  for (std::size_t m = 0; m < window.size(); ++m)
    for (std::int64_t i = 0; i < batch.micro_batch * batch.seq; ++i) {
      const auto place = static_cast<std::int32_t>(i % batch.seq);
      const bool is_masked = m == 1 && i % 3 != 0;
      window[m].tokens.push_back(token(random));
      window[m].targets.push_back(is_masked ? -1 : token(random));
      if (!batch.packed) continue;
      const std::int32_t border = 2;
      window[m].first_key.push_back(place < border ? 0 : border);
      window[m].position_ids.push_back(place < border ? place : place - border);
    }
  return window;
}

class FiniteDifference : public testing::TestWithParam<Tested> {
 protected:
  FiniteDifference()
      : model_(find_model(GetParam().model)),
        batch_{.micro_batch = 2, .seq = 5, .micro_batches = 2, .packed = GetParam().packed},
        window_(masked_window(model_, batch_)),
        backend_(make_reference_backend()) {
    LowerOptions options;
    options.update.learning_rate = 0;  // parameters stay where the test puts them
    execution_ = std::make_unique<Execution>(lower(model_, find_recipe("fp32"), batch_, backend_->target(), options),
                                             *backend_, Placement::per_tensor);
    execution_->initialize(initial_parameters(model_, 7), 1);
  }

  double loss() {
    execution_->run_update(window_);
    return execution_->outcome().loss;
  }

  /// Slope of the loss at the parameter's values along `direction`, by five points: error of the order of h⁴.
  double slope(TensorId parameter, const std::vector<double>& direction) {
    constexpr double h = 2e-3;
    const std::vector<double> at = execution_->read(parameter);
    const auto loss_at = [&](double steps) {
      std::vector<double> moved = at;
      for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += steps * h * direction[i];
      execution_->write(parameter, moved);
      return loss();
    };
    const double result = (8 * (loss_at(1) - loss_at(-1)) - (loss_at(2) - loss_at(-2))) / (12 * h);
    execution_->write(parameter, at);
    return result;
  }

  Model model_;
  Batch batch_;
  Window window_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Execution> execution_;
};

TEST_P(FiniteDifference, OfTheLossAgreeWithEveryGradient) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  for (const Program::Parameter& p : execution_->program().parameters) {
    SCOPED_TRACE(p.name);
    loss();
    const std::vector<double> grad = execution_->read(p.grad);
    const double norm = std::sqrt(std::inner_product(grad.begin(), grad.end(), grad.begin(), 0.0));
    ASSERT_TRUE(std::isfinite(norm));
    // A random direction meets every element; that of the gradient itself its size.
    std::vector<double> direction(grad.size());
    for (double& d : direction) d = normal(random) / std::sqrt(static_cast<double>(direction.size()));
    const double expected = std::inner_product(grad.begin(), grad.end(), direction.begin(), 0.0);
    EXPECT_NEAR(slope(p.param, direction), expected, 1e-8 * norm + 1e-11);
    if (norm < 1e-9) continue;  // keys' bias: softmax does not see it
    std::vector<double> along = grad;
    for (double& d : along) d /= norm;
    EXPECT_NEAR(slope(p.param, along), norm, 1e-7 * norm + 1e-11);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, FiniteDifference, testing::ValuesIn(kTested),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace mixroof
