#include "harness/execute/execution.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "harness/execute/initialization.h"
#include "harness/program/lower.h"

namespace mixroof {
namespace {

const Model& tiny_model() {
  static const Model model = find_model("gpt2-tiny");
  return model;
}

Backend& cpu() {
  static const std::unique_ptr<Backend> backend = make_cpu_backend(0);
  return *backend;
}

Window random_window(const Batch& batch, std::uint64_t seed, double masked_share = 0) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(tiny_model().vocab) - 1);
  std::uniform_real_distribution<double> share(0, 1);
  Window window(static_cast<std::size_t>(batch.micro_batches));
  for (MicroBatch& m : window)
    for (std::int64_t i = 0; i < batch.micro_batch * batch.seq; ++i) {
      m.tokens.push_back(token(random));
      m.targets.push_back(share(random) < masked_share ? -1 : token(random));
    }
  return window;
}

class Training {
 public:
  Training(std::string_view recipe, const Batch& batch, double scale = 1, const LowerOptions& options = {},
           Placement placement = Placement::arena, const Model& model = tiny_model())
      : execution(lower(model, find_recipe(recipe), batch, cpu().target(), options), cpu(), placement) {
    execution.initialize(initial_parameters(model, 7), scale);
  }
  double update(const Window& window) {
    execution.run_update(window);
    return execution.outcome().loss;
  }
  /// Every value that a skipped update must leave alone.
  std::vector<std::vector<double>> state() const {
    std::vector<std::vector<double>> all;
    for (const Program::Parameter& p : execution.program().parameters)
      for (const TensorId id : {p.param, p.master, p.moment1, p.moment2})
        if (id >= 0) all.push_back(execution.read(id));
    return all;
  }
  std::vector<std::vector<double>> gradients() const {
    std::vector<std::vector<double>> all;
    for (const Program::Parameter& p : execution.program().parameters) all.push_back(execution.read(p.grad));
    return all;
  }
  /// Scales, amaxes and counts; empty without FP8.
  std::vector<std::vector<double>> fp8_state() const {
    const Program& p = execution.program();
    std::vector<std::vector<double>> all;
    for (const TensorId id : {p.fp8_scale, p.fp8_amax, p.fp8_history, p.fp8_counts, p.fp8_scale_counts})
      if (id >= 0) all.push_back(execution.read(id));
    return all;
  }
  Execution execution;
};

const Batch kBatch{.micro_batch = 2, .seq = 16, .micro_batches = 1};

const char* const kModels[] = {"gpt2-tiny", "llama-tiny"};  // both have 256 tokens

TEST(Execution, EveryRecipe_LearnsTheSameWindow_AndStartsAtLogVocab) {
  for (const char* model : kModels)
    for (const Recipe& recipe : all_recipes()) {
      SCOPED_TRACE(fmt::format("{} {}", model, recipe.name));
      Training run(recipe.name, kBatch, recipe.loss_scaling == LossScaling::dynamic ? 1024 : 1, {}, Placement::arena,
                   find_model(model));
      const Window window = random_window(kBatch, 3);
      const double first = run.update(window);
      EXPECT_NEAR(first, std::log(256.0), 0.1);
      double last = first;
      for (int i = 0; i < 10; ++i) last = run.update(window);
      if (recipe.diagnostic) continue;
      EXPECT_LT(last, first - 0.2);
    }
}

TEST(Execution, ArenaAndPerTensorPlacement_GiveTheSameBits) {
  for (const char* recipe : {"fp32", "fp16-autocast", "fp8-hybrid"}) {
    const Batch batch{.micro_batch = 2, .seq = 16, .micro_batches = 3};
    Training arena(recipe, batch, 1024), single(recipe, batch, 1024, {}, Placement::per_tensor);
    for (int i = 0; i < 3; ++i) {
      const Window window = random_window(batch, 10 + static_cast<std::uint64_t>(i), 0.3);
      EXPECT_EQ(arena.update(window), single.update(window)) << recipe;
    }
    EXPECT_EQ(arena.state(), single.state()) << recipe;
  }
}

TEST(Execution, Checkpointing_ChangesNoBit) {
  LowerOptions checkpointing;
  checkpointing.checkpointing = Checkpointing::layer;
  for (const char* model : kModels)
    for (const char* recipe : {"fp32", "fp16-autocast", "fp16-master", "fp8-hybrid"})
      for (const std::int64_t micro_batches : {1, 3}) {
        SCOPED_TRACE(fmt::format("{} {} x{}", model, recipe, micro_batches));
        const Batch batch{.micro_batch = 2, .seq = 16, .micro_batches = micro_batches};
        const Placement placement = micro_batches == 1 ? Placement::arena : Placement::per_tensor;
        Training plain(recipe, batch, 1024, {}, placement, find_model(model));
        Training again(recipe, batch, 1024, checkpointing, placement, find_model(model));
        for (std::uint64_t i = 0; i < 2; ++i) {
          const Window window = random_window(batch, 20 + i, 0.3);
          EXPECT_EQ(plain.update(window), again.update(window));
          EXPECT_EQ(plain.gradients(), again.gradients());
        }
        EXPECT_EQ(plain.state(), again.state());
        EXPECT_EQ(plain.fp8_state(), again.fp8_state());
      }
}

TEST(Execution, LS6_SeveralMicroBatches_EqualOneBigBatch) {  // sums over effective tokens, not means of means
  const Batch one{.micro_batch = 4, .seq = 16, .micro_batches = 1}, four{.micro_batch = 1, .seq = 16, .micro_batches = 4};
  Window window = random_window(four, 5, 0.4);
  std::fill(window[2].targets.begin(), window[2].targets.end(), -1);  // a micro-batch without any effective token
  Window joined(1);
  for (const MicroBatch& m : window) {
    joined[0].tokens.insert(joined[0].tokens.end(), m.tokens.begin(), m.tokens.end());
    joined[0].targets.insert(joined[0].targets.end(), m.targets.begin(), m.targets.end());
  }
  Training split("fp32", four), whole("fp32", one);
  EXPECT_NEAR(split.update(window), whole.update(joined), 1e-6);
  EXPECT_NEAR(split.execution.outcome().grad_norm, whole.execution.outcome().grad_norm,
              1e-5 * whole.execution.outcome().grad_norm);
}

TEST(LossScale, LS3_OverflowInOneMicroBatch_SkipsTheWholeWindow_AndLeavesTheStateBitIdentical) {
  const Batch batch{.micro_batch = 1, .seq = 16, .micro_batches = 2};
  // 2^24 times a gradient near 1/tokens passes fp16's 65504 in the first window.
  Training run("fp16-master", batch, 16777216);
  const std::vector<std::vector<double>> before = run.state();
  run.update(random_window(batch, 4));
  UpdateOutcome outcome = run.execution.outcome();
  EXPECT_FALSE(outcome.applied);
  EXPECT_EQ(outcome.skipped, 1);
  EXPECT_EQ(outcome.applied_total, 0);
  EXPECT_EQ(outcome.loss_scale, 8388608);  // one backoff for the window
  EXPECT_EQ(run.state(), before);
  for (int i = 0; i < 20 && !outcome.applied; ++i) {
    run.update(random_window(batch, 5));
    outcome = run.execution.outcome();
  }
  EXPECT_TRUE(outcome.applied) << "the windows after a skip are clean";
  EXPECT_NE(run.state(), before);
}

/// Makes one logit's gradient infinite in one micro-batch (from 0) of each window that it watches.
class Overflow : public OpObserver {
 public:
  Overflow(Execution& execution, int micro_batch) : execution_(execution), micro_batch_(micro_batch) {
    execution_.set_observer(this);
  }
  ~Overflow() override { execution_.set_observer(nullptr); }
  void before(const Op&) override {}
  void after(const Op& op) override {
    if (op.problem.kernel != "cross_entropy") return;
    if (seen_++ % static_cast<int>(execution_.program().batch.micro_batches) != micro_batch_) return;
    const TensorId dlogits = execution_.program().logits;  // in place
    std::vector<double> values = execution_.read(dlogits);
    values[3] = std::numeric_limits<double>::infinity();
    execution_.write(dlogits, values);
  }

 private:
  Execution& execution_;
  int micro_batch_, seen_ = 0;
};

TEST(LossScale, LS3_AnInfinityInTheSecondOfFourMicroBatches_SkipsOnceBacksOffOnceAndLeavesNothingBehind) {
  const Batch batch{.micro_batch = 1, .seq = 16, .micro_batches = 4};
  for (const bool accumulate_in_grads : {false, true}) {
    LowerOptions options;
    options.accumulate_in_grads = accumulate_in_grads;
    Training run("fp16-master", batch, 65536, options), clean("fp16-master", batch, 32768, options);
    const std::vector<std::vector<double>> before = run.state();
    {
      const Overflow overflow(run.execution, 1);
      run.update(random_window(batch, 1));
    }
    UpdateOutcome outcome = run.execution.outcome();
    EXPECT_TRUE(outcome.found_inf);
    EXPECT_FALSE(outcome.applied);
    EXPECT_EQ(outcome.loss_scale, 32768);  // not 16384, not 8192
    EXPECT_EQ(outcome.applied_total, 0);   // the optimizer's step count
    EXPECT_EQ(run.state(), before);

    // The next windows are those of a run that never overflowed, bit for bit.
    for (std::uint64_t seed = 2; seed < 5; ++seed) {
      run.update(random_window(batch, seed));
      clean.update(random_window(batch, seed));
    }
    outcome = run.execution.outcome();
    EXPECT_EQ(outcome.skipped, 1);
    EXPECT_EQ(outcome.applied_total, 3);
    EXPECT_EQ(outcome.backoffs, 1);
    EXPECT_EQ(outcome.loss_scale, 32768);
    EXPECT_EQ(run.state(), clean.state());
  }
}

TEST(LossScale, LS2_OverflowInEveryWindow_SinksToTheFloorAndIsReportedThere) {
  Training run("fp16-master", kBatch, 65536);
  const std::vector<std::vector<double>> before = run.state();
  const Overflow overflow(run.execution, 0);
  for (int i = 0; i < 16; ++i) run.update(random_window(kBatch, 1));
  EXPECT_EQ(run.execution.outcome().loss_scale, 1);
  EXPECT_FALSE(run.execution.outcome().scale_exhausted);
  run.update(random_window(kBatch, 1));
  EXPECT_TRUE(run.execution.outcome().scale_exhausted);
  EXPECT_EQ(run.execution.outcome().loss_scale, 1);
  EXPECT_EQ(run.state(), before);
}

TEST(LossScale, LS1_GrowthStopsAtTheCeiling_AndEveryWindowIsApplied) {
  LowerOptions options;
  options.update = {.growth_interval = 1, .ceiling = 4096};
  Training run("fp16-master", kBatch, 1024, options);
  for (int i = 0; i < 5; ++i) run.update(random_window(kBatch, 1));
  EXPECT_EQ(run.execution.outcome().loss_scale, 4096);
  EXPECT_EQ(run.execution.outcome().growths, 2);
  EXPECT_EQ(run.execution.outcome().applied_total, 5);
}

TEST(LossScale, LS4_GradNorm_DoesNotDependOnTheScale) {
  const Window window = random_window(kBatch, 8);
  Training small("fp16-master", kBatch, 256), large("fp16-master", kBatch, 4096);
  small.update(window);
  large.update(window);
  const double norm = small.execution.outcome().grad_norm;
  EXPECT_GT(norm, 0);
  EXPECT_NEAR(large.execution.outcome().grad_norm, norm, 2e-3 * norm);
}

TEST(Execution, LS6_WindowWithoutEffectiveTokens_IsSkippedWithoutDecay) {
  Training run("fp32", kBatch);
  Window window = random_window(kBatch, 4);
  std::fill(window[0].targets.begin(), window[0].targets.end(), -1);
  const std::vector<std::vector<double>> before = run.state();
  run.update(window);
  const UpdateOutcome outcome = run.execution.outcome();
  EXPECT_FALSE(outcome.applied);
  EXPECT_FALSE(outcome.found_inf);
  EXPECT_TRUE(std::isnan(outcome.loss));
  EXPECT_EQ(run.state(), before);
}

TEST(Execution, PhaseTimes_SumToTheUpdate) {
  Training run("fp32", {.micro_batch = 1, .seq = 16, .micro_batches = 3});
  const UpdateTimes times = run.execution.run_update(random_window({.micro_batch = 1, .seq = 16, .micro_batches = 3}, 1));
  double sum = 0;
  for (const double seconds : times.phase_s) {
    EXPECT_GT(seconds, 0);
    sum += seconds;
  }
  EXPECT_NEAR(sum, times.total_s, 1e-9);
}

TEST(Execution, ModelBeyondMemory_IsOutOfMemory_BeforeAnythingIsAllocated) {
  const Program big = lower(find_model("gpt2-1558m"), find_recipe("fp32"), {.micro_batch = 4096, .seq = 1024, .micro_batches = 1},
                            cpu().target());
  try {
    Execution run(big, cpu(), Placement::arena);
    FAIL() << "a model of many terabytes was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::out_of_memory);
    EXPECT_NE(std::string(error.what()).find("free"), std::string::npos);
  }
}

}  // namespace
}  // namespace mixroof
