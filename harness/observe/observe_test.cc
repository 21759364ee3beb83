#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>

#include "harness/execute/initialization.h"
#include "harness/observe/ledger.h"
#include "harness/observe/memory_pass.h"
#include "harness/observe/op_trace.h"
#include "harness/program/lower.h"

namespace mixroof {
namespace {

const Batch kBatch{.micro_batch = 2, .seq = 32, .micro_batches = 1};

Backend& cpu() {
  static const std::unique_ptr<Backend> backend = make_cpu_backend(0);
  return *backend;
}

Window counting_window(const Batch& batch) {
  Window window(static_cast<std::size_t>(batch.micro_batches));
  for (MicroBatch& m : window)
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(batch.micro_batch * batch.seq); ++i) {
      m.tokens.push_back(i % 256);
      m.targets.push_back((i + 1) % 256);
    }
  return window;
}

TEST(Ledger, CountsCurrentAndPeakByClass) {
  Ledger ledger(cpu().memory());
  void* param = ledger.allocate(1000, TensorClass::param);
  void* activation = ledger.allocate(500, TensorClass::activation);
  ledger.deallocate(activation, 500, TensorClass::activation);
  void* grad = ledger.allocate(300, TensorClass::grad);
  EXPECT_EQ(ledger.current_bytes(), 1300);
  EXPECT_EQ(ledger.peak_bytes(), 1500);
  EXPECT_EQ(ledger.at_peak()[static_cast<std::size_t>(TensorClass::activation)], 500);
  EXPECT_EQ(ledger.current()[static_cast<std::size_t>(TensorClass::grad)], 300);
  ledger.deallocate(param, 1000, TensorClass::param);
  ledger.deallocate(grad, 300, TensorClass::grad);
  EXPECT_EQ(ledger.current_bytes(), 0);
}

void expect_ledger_equals_plan(const Model& model, const Recipe& recipe, const Batch& batch, Checkpointing checkpointing) {
  LowerOptions options;
  options.checkpointing = checkpointing;
  Ledger ledger(cpu().memory());
  {
    Execution execution(lower(model, recipe, batch, cpu().target(), options), cpu(), Placement::per_tensor, &ledger);
    execution.initialize(initial_parameters(model, 1), 1024);
    for (int update = 0; update < 2; ++update) execution.run_update(counting_window(batch));
    EXPECT_EQ(ledger.peak_bytes(), execution.bytes().live_peak);
    for (std::size_t c = 0; c < kTensorClassCount; ++c) {
      const bool is_state = static_cast<TensorClass>(c) != TensorClass::tokens;
      EXPECT_EQ(is_state ? ledger.current()[c] : 0, execution.bytes().persistent[c]) << name(static_cast<TensorClass>(c));
    }
  }
  EXPECT_EQ(ledger.current_bytes(), 0) << "something leaks";
}

class LedgerAndPlan : public testing::TestWithParam<std::int64_t> {};

TEST_P(LedgerAndPlan, PlannedLivePeak_EqualsTheLedgerExactly_ForEveryRecipe) {
  const Batch batch{.micro_batch = 2, .seq = 16, .micro_batches = GetParam()};
  for (const char* model : {"gpt2-tiny", "llama-tiny"}) {
    for (const Recipe& recipe : all_recipes()) {
      SCOPED_TRACE(fmt::format("{} {}", model, recipe.name));
      expect_ledger_equals_plan(find_model(model), recipe, batch, Checkpointing::none);
    }
    for (const char* recipe : {"fp32", "fp16-autocast", "fp8-hybrid"}) {
      SCOPED_TRACE(fmt::format("{} {} with checkpointing", model, recipe));
      expect_ledger_equals_plan(find_model(model), find_recipe(recipe), batch, Checkpointing::layer);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Windows, LedgerAndPlan, testing::Values(1, 3));

TEST(OpTrace, OpTimesAndIdleTime_SumToTheTracedUpdate) {
  Execution execution(lower(find_model("gpt2-tiny"), find_recipe("fp8-hybrid"), kBatch, cpu().target()), cpu(), Placement::arena);
  execution.initialize(initial_parameters(find_model("gpt2-tiny"), 1), 1);
  OpTrace trace(cpu());
  execution.set_observer(&trace);
  for (int update = 0; update < 3; ++update) trace.end_update(execution.run_update(counting_window(kBatch)).total_s);
  EXPECT_EQ(trace.updates(), 3);
  std::size_t ops = 0;
  for (const auto& [id, times] : trace.by_problem()) ops += times.size();
  EXPECT_EQ(ops, 3 * (execution.program().section(SectionKind::first).size() +
                      execution.program().section(SectionKind::update).size()));
  EXPECT_GT(trace.explained_fraction(), 0);
  EXPECT_LE(trace.explained_fraction(), 1);
  EXPECT_GT(trace.seconds_by_category()[static_cast<std::size_t>(CostCategory::quantize)], 0);
}

TEST(OpTrace, RecomputationIsBookedApart) {
  LowerOptions options;
  options.checkpointing = Checkpointing::layer;
  const auto traced = [&](const LowerOptions& lowering) {
    Execution execution(lower(find_model("gpt2-tiny"), find_recipe("fp32"), kBatch, cpu().target(), lowering), cpu(), Placement::arena);
    execution.initialize(initial_parameters(find_model("gpt2-tiny"), 1), 1);
    auto trace = std::make_unique<OpTrace>(cpu());
    execution.set_observer(trace.get());
    trace->end_update(execution.run_update(counting_window(kBatch)).total_s);
    execution.set_observer(nullptr);
    return trace;
  };
  const auto plain = traced({}), repeated = traced(options);
  EXPECT_EQ(plain->recompute_s(), 0);
  EXPECT_GT(repeated->recompute_s(), 0);
  double sum = repeated->recompute_s() + repeated->idle_s();
  for (const double seconds : repeated->seconds_by_category()) sum += seconds;
  double ops = 0;
  for (const auto& [id, times] : repeated->by_problem()) ops = std::accumulate(times.begin(), times.end(), ops);
  EXPECT_NEAR(sum - repeated->idle_s(), ops, 1e-9);
}

TEST(OpTrace, Watching_ChangesNoResult) {
  const auto losses = [](bool watched) {
    Execution execution(lower(find_model("gpt2-tiny"), find_recipe("bf16-master"), kBatch, cpu().target()), cpu(), Placement::arena);
    execution.initialize(initial_parameters(find_model("gpt2-tiny"), 1), 1);
    OpTrace trace(cpu());
    if (watched) execution.set_observer(&trace);
    std::vector<double> all;
    for (int update = 0; update < 3; ++update) {
      execution.run_update(counting_window(kBatch));
      all.push_back(execution.outcome().loss);
    }
    return all;
  };
  EXPECT_EQ(losses(true), losses(false));
}

TEST(MemoryPass, LedgerEqualsThePlan_AndTheSystemAgrees) {
  const auto program = [] {
    return lower(find_model("gpt2-10m"), find_recipe("bf16-master"), {.micro_batch = 2, .seq = 64, .micro_batches = 1}, cpu().target());
  };
  const Batch batch{.micro_batch = 2, .seq = 64, .micro_batches = 1};
  const MemoryObservation seen = observe_memory(program, cpu(), {counting_window(batch), counting_window(batch)}, 1, 1);
  EXPECT_EQ(seen.ledger_peak, seen.live_planned);
  EXPECT_GE(seen.arena_planned, seen.live_planned);
  const double allowed = 0.02 * static_cast<double>(seen.live_planned) + 32.0 * 1024 * 1024;
  EXPECT_NEAR(static_cast<double>(seen.observed_peak), static_cast<double>(seen.live_planned), allowed);
  EXPECT_NEAR(static_cast<double>(seen.observed_persistent), static_cast<double>(seen.ledger_persistent), allowed);
}

}  // namespace
}  // namespace mixroof
