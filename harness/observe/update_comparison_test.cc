#include "harness/observe/update_comparison.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>

#include "harness/execute/initialization.h"
#include "harness/observe/fp8_counts.h"
#include "harness/program/lower.h"

namespace mixroof {
namespace {

const Batch kTwoMicroBatches{.micro_batch = 2, .seq = 16, .micro_batches = 2};

Backend& cpu() {
  static const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  return *backend;
}

Window random_window(const Batch& batch, std::uint64_t seed, double masked = 0) {
  std::mt19937_64 random(seed);
  Window window(static_cast<std::size_t>(batch.micro_batches));
  for (MicroBatch& m : window)
    for (std::int64_t i = 0; i < batch.micro_batch * batch.seq; ++i) {
      m.tokens.push_back(static_cast<std::int32_t>(random() % 256));
      const bool is_masked = std::uniform_real_distribution<double>()(random) < masked;
      m.targets.push_back(is_masked ? -1 : static_cast<std::int32_t>(random() % 256));
    }
  return window;
}

/// Overwrites a tensor after one op of one update, as a wrong kernel would.
class Damage : public OpObserver {
 public:
  using Change = std::function<void(std::vector<double>&)>;
  Damage(Execution& execution, std::string op, std::string tensor, std::int64_t micro_batch, Change change)
      : execution_(execution),
        locator_(execution.program()),
        op_(std::move(op)),
        tensor_(std::move(tensor)),
        micro_batch_(micro_batch),
        change_(std::move(change)) {}
  void before(const Op& op) override { locator_.enter(op); }
  void after(const Op& op) override {
    if (op.name != op_ || locator_.micro_batch() != micro_batch_) return;
    const TensorId id = execution_.program().find_tensor(tensor_);
    std::vector<double> values = execution_.read(id);
    change_(values);
    execution_.write(id, values);
    ++times;
  }
  int times = 0;

 private:
  Execution& execution_;
  OpLocator locator_;
  std::string op_, tensor_;
  std::int64_t micro_batch_;
  Change change_;
};

void double_all(std::vector<double>& values) {
  for (double& value : values) value *= 2;
}
void one_infinity(std::vector<double>& values) { values[values.size() / 2] = std::numeric_limits<double>::infinity(); }

/// A recipe and FP32 at the start of training.
class Pair {
 public:
  explicit Pair(std::string_view recipe, const Batch& batch = kTwoMicroBatches, double loss_scale = 1,
                const LowerOptions& lowering = {}, const char* model_name = "gpt2-tiny")
      : model(find_model(model_name)),
        batch_(batch),
        execution(lower(model, find_recipe(recipe), batch, cpu().target(), lowering), cpu(), Placement::arena),
        fp32(lower(model, find_recipe("fp32"), batch, cpu().target(), lowering), cpu(), Placement::arena) {
    execution.initialize(initial_parameters(model, 1), loss_scale);
    fp32.initialize(initial_parameters(model, 2), 1);  // other values: the comparison makes the inputs equal
    options.limits = limits_for(find_recipe(recipe), model.layers);
  }
  UpdateComparison compare(double masked = 0) {
    return compare_update(execution, fp32,
                          random_window(batch_, 10 + static_cast<std::uint64_t>(execution.outcome().attempted), masked),
                          options);
  }
  void train(int updates) {
    for (int i = 0; i < updates; ++i)
      execution.run_update(random_window(batch_, 10 + static_cast<std::uint64_t>(execution.outcome().attempted)));
  }

  Model model;
  Batch batch_;
  Execution execution, fp32;
  ComparisonOptions options;
};

void expect_place(const Place& place, std::int64_t update, std::int64_t micro_batch, Phase phase, int layer,
                  const char* op, const char* tensor) {
  EXPECT_EQ(place.update, update);
  EXPECT_EQ(place.micro_batch, micro_batch);
  EXPECT_EQ(place.phase, phase);
  EXPECT_EQ(place.layer, layer);
  EXPECT_EQ(place.op, op);
  EXPECT_EQ(place.tensor, tensor);
}

TEST(UpdateComparison, Fp32BesideItself_DiffersNowhere) {
  Pair pair("fp32");
  pair.train(2);
  const UpdateComparison c = pair.compare(0.3);
  EXPECT_EQ(c.update, 3);
  EXPECT_TRUE(c.applied);
  EXPECT_EQ(c.grad.rel_l2(), 0);
  EXPECT_NEAR(c.grad.cosine(), 1, 1e-12);
  EXPECT_EQ(c.step.rel_l2(), 0);
  EXPECT_EQ(c.moments[0].rel_l2(), 0);
  EXPECT_EQ(c.moments[1].rel_l2(), 0);
  EXPECT_EQ(c.grad_zeros.underflow, 0);
  EXPECT_GT(c.grad_zeros.values, 0);
  EXPECT_FALSE(c.first_divergence);
  EXPECT_FALSE(c.first_nonfinite);
}

TEST(UpdateComparison, EveryRecipeOfBothFamilies_IsWithinItsLimits_AtTheStart) {
  for (const char* model : {"gpt2-tiny", "llama-tiny"})
    for (const Recipe& recipe : all_recipes()) {
      if (recipe.diagnostic) continue;
      SCOPED_TRACE(fmt::format("{} {}", model, recipe.name));
      Pair pair(recipe.name, kTwoMicroBatches, recipe.loss_scaling == LossScaling::dynamic ? 1024 : 1, {}, model);
      if (recipe.fp8 == Fp8Scaling::delayed) pair.train(1);
      const UpdateComparison c = pair.compare(0.3);
      EXPECT_LE(c.grad.rel_l2(), pair.options.limits.grad_rel_l2);
      EXPECT_GE(c.grad.cosine(), pair.options.limits.grad_cosine);
      EXPECT_LE(c.step.rel_l2(), pair.options.limits.update_rel_l2);
      EXPECT_TRUE(recipe.name == "fp32" || c.grad.rel_l2() > 1e-5) << "it did not round";
      if (c.first_divergence) ADD_FAILURE() << c.first_divergence->place.op << " " << c.first_divergence->rel_l2;
    }
}

TEST(UpdateComparison, AScaledLoss_IsNoDifference_AlsoInTheLogitsPlace) {
  // 2^12 changes no bit of a mantissa: what is compared must be unscaled first.
  Pair pair("fp16-autocast", kTwoMicroBatches, 4096);
  const UpdateComparison c = pair.compare();
  EXPECT_EQ(c.loss_scale, 4096);
  EXPECT_LT(c.grad.rel_l2(), 0.01);
  EXPECT_FALSE(c.first_divergence);
}

TEST(UpdateComparison, ADamagedOpInTheBackwardOfLayer1_IsLocatedExactly) {
  for (const char* recipe : {"bf16-master", "fp16-autocast"}) {
    SCOPED_TRACE(recipe);
    Pair pair(recipe, kTwoMicroBatches, std::string_view(recipe).starts_with("fp16") ? 256 : 1);
    pair.train(2);
    Damage damage(pair.execution, "h.1.attn backward", "h.1.attn.dqkv", 2, double_all);
    pair.options.intruder = &damage;
    const UpdateComparison c = pair.compare();
    ASSERT_EQ(damage.times, 1);
    ASSERT_TRUE(c.first_divergence);
    expect_place(c.first_divergence->place, 3, 2, Phase::backward, 1, "h.1.attn backward", "h.1.attn.dqkv");
    EXPECT_NEAR(c.first_divergence->rel_l2, 1, 0.05);  // twice as long: as far off as it is long
    EXPECT_EQ(c.first_divergence->limit, pair.options.limits.tensor_rel_l2);
    EXPECT_FALSE(c.first_nonfinite);
  }
}

TEST(UpdateComparison, ADamagedForwardAndADamagedOptimizer_AreLocatedExactly) {
  Pair forward("bf16-autocast");
  Damage gelu(forward.execution, "h.0.mlp.gelu forward", "h.0.mlp.gelu.out", 1, double_all);
  forward.options.intruder = &gelu;
  const UpdateComparison c = forward.compare();
  ASSERT_TRUE(c.first_divergence);
  expect_place(c.first_divergence->place, 1, 1, Phase::forward, 0, "h.0.mlp.gelu forward", "h.0.mlp.gelu.out");

  Pair update("bf16-master");
  Damage optimizer(update.execution, "h.1.mlp.c_fc.weight adamw", "h.1.mlp.c_fc.weight.moment2", 0, double_all);
  update.options.intruder = &optimizer;
  const UpdateComparison d = update.compare();
  ASSERT_TRUE(d.first_divergence);
  expect_place(d.first_divergence->place, 1, 0, Phase::update, -1, "h.1.mlp.c_fc.weight adamw",
               "h.1.mlp.c_fc.weight.moment2");
}

TEST(UpdateComparison, AnInfinity_IsLocatedExactly_AndTheUpdateIsSkipped) {
  Pair pair("bf16-master");
  pair.train(1);
  Damage damage(pair.execution, "h.0.mlp.c_fc dgrad", "h.0.mlp.c_fc.din", 2, one_infinity);
  pair.options.intruder = &damage;
  const UpdateComparison c = pair.compare();
  EXPECT_FALSE(c.applied);
  ASSERT_TRUE(c.first_nonfinite);
  expect_place(*c.first_nonfinite, 2, 2, Phase::backward, 0, "h.0.mlp.c_fc dgrad", "h.0.mlp.c_fc.din");
  ASSERT_TRUE(c.first_divergence) << "not a number is beyond every limit";
  EXPECT_EQ(c.first_divergence->place.op, "h.0.mlp.c_fc dgrad");
}

TEST(UpdateComparison, AnOverflowingLossScale_IsFoundWhereItOverflows) {
  // 2^40 leaves fp16 in the gradient of the logits; nothing before it is scaled.
  Pair pair("fp16-master", kTwoMicroBatches, 0x1p40);
  const std::optional<Place> place = find_first_nonfinite(pair.execution, random_window(kTwoMicroBatches, 1));
  ASSERT_TRUE(place);
  expect_place(*place, 1, 1, Phase::forward, -1, "cross_entropy", "logits");
  Pair healthy("fp16-master", kTwoMicroBatches, 1024);
  EXPECT_FALSE(find_first_nonfinite(healthy.execution, random_window(kTwoMicroBatches, 1)));
}

TEST(UpdateComparison, Watching_ChangesNoBit) {
  const auto state = [](bool watched) {
    Pair pair("fp16-master", kTwoMicroBatches, 1024);
    pair.train(1);
    if (watched)
      pair.compare();
    else
      pair.train(1);
    std::vector<std::vector<double>> all;
    for (const Program::Parameter& p : pair.execution.program().parameters)
      for (const TensorId id : {p.param, p.master, p.grad, p.moment1, p.moment2})
        all.push_back(pair.execution.read(id));
    return all;
  };
  EXPECT_EQ(state(true), state(false));
}

TEST(UpdateComparison, Absorption_TakesBf16ParametersButNoMaster) {  // cases.md NUM-3
  const auto absorbed = [](const char* recipe) {
    LowerOptions lowering;
    lowering.update.learning_rate = 1e-5;
    Pair pair(recipe, kTwoMicroBatches, 1, lowering);
    pair.train(2);
    return pair.compare().absorbed;
  };
  const AbsorbedCounts master = absorbed("bf16-master"), nomaster = absorbed("bf16-nomaster");
  EXPECT_GT(nomaster.updates, 100000);
  // Steps are at most 1.17e-5; half a spacing of bf16 is above that from 2^-8 on, and most weights of N(0, 0.02) are.
  EXPECT_GT(nomaster.fraction(), 0.7);
  EXPECT_LT(master.fraction(), 1e-3);
}

TEST(UpdateComparison, TinyGradientsUnderflowInUnscaledFp16_NotWithAScale_NorInBf16) {
  // A larger window makes gradients small: a token enters the loss as 1 of 2 · 32 · 32.
  const Batch large{.micro_batch = 32, .seq = 32, .micro_batches = 2};
  const auto zeros = [&](const char* recipe, double loss_scale) {
    Pair pair(recipe, large, loss_scale);
    // Logits that are sure of themselves: the softmax of all other tokens is nearly 0.
    const TensorId table = pair.execution.program().find_tensor("wte.weight");
    const TensorId master = pair.execution.program().find_tensor("wte.weight.master");
    std::vector<double> values = pair.execution.read(master);
    for (double& value : values) value *= 15;
    pair.execution.write(table, values);
    pair.execution.write(master, values);
    return pair.compare();
  };
  const UpdateComparison unscaled = zeros("fp16-master-unscaled", 1), scaled = zeros("fp16-master", 65536),
                         bf16 = zeros("bf16-master", 1);
  ASSERT_TRUE(scaled.applied);
  EXPECT_GT(unscaled.activation_zeros.underflow_fraction(), 0.05);
  EXPECT_GT(unscaled.subnormal_fraction, 0.2);
  EXPECT_LT(scaled.activation_zeros.underflow_fraction(), unscaled.activation_zeros.underflow_fraction() / 4);
  EXPECT_LT(bf16.activation_zeros.underflow_fraction(), 0.01);
  EXPECT_EQ(bf16.subnormal_fraction, 0);
}

TEST(UpdateComparison, MaskedPositions_AreStructuralZeros) {
  Pair pair("bf16-master");
  const UpdateComparison c = pair.compare(0.5);
  // Half of the rows of dlogits are 0 in both; the tables have rows that no token of the window uses (positions past
  // 16).
  EXPECT_GT(c.activation_zeros.structural, 0.3 * 2 * 2 * 16 * 256);
  EXPECT_LT(c.activation_zeros.underflow_fraction(), 0.01);
  EXPECT_GT(c.grad_zeros.structural, 0);
  const auto table = std::find_if(c.tensors.begin(), c.tensors.end(),
                                  [](const TensorEvidence& t) { return t.name == "wpe.weight.grad"; });
  ASSERT_NE(table, c.tensors.end());
  EXPECT_EQ(table->stats.zeros, (pair.model.context - 16) * pair.model.width);
  EXPECT_EQ(table->zeros->underflow, 0);
}

TEST(UpdateComparison, SecondMomentsOfFp16_AreZero_AndStepsPassAdamWsBound) {
  LowerOptions lowering;
  lowering.update.learning_rate = 1e-3;
  Pair pair("fp16-pure", kTwoMicroBatches, 1024, lowering);
  pair.train(6);
  const UpdateComparison c = pair.compare();
  EXPECT_GT(c.moment2_zeros.underflow_fraction(), 0.1);
  EXPECT_GT(c.largest_step, c.step_bound);
  Pair healthy("bf16-master", kTwoMicroBatches, 1, lowering);
  healthy.train(6);
  const UpdateComparison h = healthy.compare();
  EXPECT_LE(h.largest_step, h.step_bound + 0.1);  // and decay
  EXPECT_LT(h.moment2_zeros.underflow_fraction(), 1e-3);
}

TEST(UpdateComparison, ALimitedRecord_ComparesEveryNthValue_AndFindsAboutTheSame) {
  Pair whole("bf16-master"), limited("bf16-master");
  limited.options.record_bytes = 1 << 20;
  const UpdateComparison all = whole.compare(), some = limited.compare();
  EXPECT_EQ(all.stride, 1);
  EXPECT_GT(some.stride, 1);
  EXPECT_EQ(some.stride % 2, 1);
  EXPECT_NEAR(some.grad.rel_l2(), all.grad.rel_l2(), 0.3 * all.grad.rel_l2());
  EXPECT_NEAR(some.grad_zeros.values, all.grad_zeros.values, 0.05 * all.grad_zeros.values);
}

TEST(Fp8Counts, CountWhatWasQuantized_AndAreAbsentElsewhere) {
  Pair pair("fp8-hybrid");
  pair.train(3);
  const std::optional<Fp8Counts> counts = read_fp8_counts(pair.execution);
  ASSERT_TRUE(counts);
  // By hand per micro-batch: 4 linears a layer, inputs of width 64, 64, 64, 256 and output gradients of 192, 64, 256,
  // 64 over 32 rows; once a window their weights. 2 layers, 2 micro-batches, 3 updates.
  const std::int64_t width = pair.model.width, rows = 32;
  const std::int64_t inputs = rows * (3 * width + 4 * width),
                     gradients = rows * (3 * width + width + 4 * width + width);
  const std::int64_t weights = 12 * width * width;
  EXPECT_EQ(counts->quantized, static_cast<double>(3 * 2 * (2 * (inputs + gradients) + weights)));
  EXPECT_GT(counts->flushed, 0);
  EXPECT_FALSE(read_fp8_counts(Pair("bf16-master").execution));
}

}  // namespace
}  // namespace mixroof
