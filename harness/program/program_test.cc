#include "harness/program/program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "harness/program/bytes.h"
#include "harness/program/lower.h"
#include "kernels/registry.h"

namespace mixroof {
namespace {

const Target kTarget{.backend = "cpu", .threads = 2};
const Batch kSmall{.micro_batch = 2, .seq = 16, .micro_batches = 1};

Program tiny(std::string_view recipe, const Batch& batch = kSmall, const LowerOptions& options = {},
             std::string_view model = "gpt2-tiny") {
  return lower(find_model(model), find_recipe(recipe), batch, kTarget, options);
}

LowerOptions with(Checkpointing checkpointing) {
  LowerOptions options;
  options.checkpointing = checkpointing;
  return options;
}

std::int64_t persistent(const BytePlan& plan, TensorClass c) { return plan.persistent[static_cast<std::size_t>(c)]; }

TEST(Lower, EveryRecipe_LowersEveryNamedModel_WithoutTouchingADevice) {
  for (const Model& model : named_models())
    for (const Recipe& recipe : all_recipes()) {
      const Program program = lower(model, recipe, {.micro_batch = 1, .seq = 32, .micro_batches = 1}, kTarget);
      EXPECT_FALSE(program.section(SectionKind::first).empty());
      EXPECT_TRUE(program.section(SectionKind::next).empty());
    }
}

TEST(Lower, SamePersistentBytesPerParameter_AsTheRecipeTable) {
  for (const char* model : {"gpt2-tiny", "llama-tiny"})
    for (const Recipe& recipe : all_recipes()) {
      const Program program = tiny(recipe.name, kSmall, {}, model);
      const BytePlan plan = plan_bytes(program);
      const std::int64_t parameters = program.model.parameters();
      const std::int64_t state = plan.persistent_total - persistent(plan, TensorClass::scaling_state);
      EXPECT_EQ(state, recipe.bytes_per_parameter() * parameters) << model << " " << recipe.name;
    }
}

TEST(Lower, SixteenBitGradients_InAWindowOfSeveralMicroBatches_CarryTwoMoreBytes) {
  const Batch window{.micro_batch = 2, .seq = 16, .micro_batches = 4};
  const auto grad_bytes = [&](const LowerOptions& options) {
    return persistent(plan_bytes(tiny("bf16-master", window, options)), TensorClass::grad);
  };
  const std::int64_t parameters = find_model("gpt2-tiny").parameters();
  EXPECT_EQ(grad_bytes({}), 4 * parameters);
  LowerOptions narrow;
  narrow.accumulate_in_grads = true;
  EXPECT_EQ(grad_bytes(narrow), 2 * parameters);
}

TEST(Lower, FirstMicroBatch_WritesGradients_FurtherOnesAccumulate) {
  const Program program = tiny("fp32", {.micro_batch = 2, .seq = 16, .micro_batches = 3});
  const auto is_wgrad = [](const Op& op) { return op.problem.kernel == "matmul" && op.problem.variant == "wgrad"; };
  int wgrads = 0;
  for (const Op& op : program.section(SectionKind::first)) {
    if (!is_wgrad(op)) continue;
    ++wgrads;
    EXPECT_FALSE(op.problem.accumulate) << op.name;
  }
  for (const Op& op : program.section(SectionKind::next)) {
    if (is_wgrad(op)) {
      EXPECT_TRUE(op.problem.accumulate) << op.name;
    }
  }
  EXPECT_EQ(wgrads, 2 * 4 + 1);  // four linears a layer, two layers, the head
}

TEST(Lower, WeightCopies_AreMadeOnceAWindow) {
  for (const char* recipe : {"bf16-autocast", "fp8-hybrid"}) {
    const Program program = tiny(recipe, {.micro_batch = 1, .seq = 16, .micro_batches = 2});
    const auto copies = [&](SectionKind kind) {
      std::multiset<std::string> written;
      for (const Op& op : program.section(kind)) {
        const std::vector<Operand> operands = find_kernel(op.problem.kernel).operands(op.problem);
        for (std::size_t i = 0; i < operands.size(); ++i) {
          const Tensor& tensor = program.tensors[static_cast<std::size_t>(op.operands[i].tensor)];
          if (operands[i].access == Access::write && tensor.tensor_class == TensorClass::compute_copy) written.insert(tensor.name);
        }
      }
      return written;
    };
    const std::multiset<std::string> first = copies(SectionKind::first);
    EXPECT_EQ(first.size(), std::set<std::string>(first.begin(), first.end()).size()) << "a copy is made twice: " << recipe;
    EXPECT_GE(first.size(), 8u);
    EXPECT_TRUE(copies(SectionKind::next).empty()) << recipe;
  }
}

TEST(Lower, FlopsOfTheLinears_AreSixTimesParametersTimesTokens) {
  // 2·m·n·k forward, twice that backward: 6 FLOPs per weight of a matrix and token. gpt2-tiny: width 64, hidden 256, two
  // layers and the tied head over 256 tokens: 2·(64·192 + 64·64 + 2·64·256) + 256·64 = 114,688 weights.
  std::int64_t flops = 0;
  for (const Slice& s : slice(tiny("fp32")))
    if (s.problem.kernel == "matmul") flops += s.count_per_update * find_kernel("matmul").cost(s.problem).total_useful_flops();
  EXPECT_EQ(flops, 6 * 114688 * kSmall.tokens_per_update());
}

TEST(Lower, FlopsOfLlamasLinears_AreSixTimesParametersTimesTokens) {
  // llama-tiny: width 64, 4 + 2·2 heads of 16, hidden 160, two layers and an untied head over 256 tokens:
  // 2·(64·128 + 64·64 + 3·64·160) + 256·64 = 102,400 weights in products.
  std::int64_t flops = 0;
  for (const Slice& s : slice(tiny("fp32", kSmall, {}, "llama-tiny")))
    if (s.problem.kernel == "matmul") flops += s.count_per_update * find_kernel("matmul").cost(s.problem).total_useful_flops();
  EXPECT_EQ(flops, 6 * 102400 * kSmall.tokens_per_update());
}

TEST(Lower, PackedBatches_CountTheirPairsInAttention) {
  // Forward 2 products and backward 5 over the pairs, 2·head_dim FLOPs each, for every head of every layer.
  for (const char* model_name : {"gpt2-tiny", "llama-tiny"}) {
    const Model model = find_model(model_name);
    const auto attention_flops = [&](const Batch& batch) {
      std::int64_t flops = 0;
      for (const Slice& s : slice(tiny("fp32", batch, {}, model_name)))
        if (s.problem.kernel == "attention")
          flops += s.count_per_update * find_kernel("attention").cost(s.problem).total_useful_flops();
      return flops;
    };
    const std::int64_t per_pair = model.layers * model.heads * 2 * model.head_dim * 7;
    EXPECT_EQ(attention_flops(kSmall), 2 * (16 * 17 / 2) * per_pair) << model_name;
    Batch packed = kSmall;
    packed.packed = true;
    EXPECT_EQ(attention_flops(packed), 2 * (16 * 17 / 2) * per_pair) << model_name;
    packed.attention_pairs = 100;
    EXPECT_EQ(attention_flops(packed), 100 * per_pair) << model_name;
  }
}

TEST(Lower, PackedInputs_AreThereWhenRowsHoldDocuments) {
  Batch packed = kSmall;
  packed.packed = true;
  for (const char* model : {"gpt2-tiny", "llama-tiny"}) {
    EXPECT_EQ(tiny("fp32", kSmall, {}, model).position_ids, -1);
    const Program program = tiny("fp32", packed, {}, model);
    for (const TensorId id : {program.position_ids, program.first_key}) {
      const Tensor& tensor = program.tensors.at(static_cast<std::size_t>(id));
      EXPECT_EQ(tensor.tensor_class, TensorClass::tokens);
      EXPECT_EQ(tensor.count(), 32);
    }
  }
}

TEST(Lower, ImpossibleBatches_AreRefusedByName) {
  EXPECT_THROW(tiny("fp32", {.micro_batch = 0, .seq = 16, .micro_batches = 1}), UsageError);
  EXPECT_THROW(tiny("fp32", {.micro_batch = 1, .seq = 65, .micro_batches = 1}), UsageError);  // context is 64
}

TEST(Slice, CountsPerUpdate_FollowTheWindow) {
  const auto total = [](const Program& program) {
    std::int64_t ops = 0;
    for (const Slice& s : slice(program)) ops += s.count_per_update;
    return ops;
  };
  const Program program = tiny("fp32", {.micro_batch = 1, .seq = 16, .micro_batches = 3});
  EXPECT_EQ(total(program), static_cast<std::int64_t>(program.section(SectionKind::first).size() +
                                                      2 * program.section(SectionKind::next).size() +
                                                      program.section(SectionKind::update).size()));
}

TEST(Dump, NamesEveryTensorAndOp) {
  const Program program = tiny("fp8-hybrid");
  const std::string text = program.dump();
  EXPECT_NE(text.find("h.1.mlp.c_proj dgrad"), std::string::npos);
  EXPECT_NE(text.find("fp8_e5m2"), std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'),
            static_cast<std::ptrdiff_t>(1 + program.tensors.size() + 3 + program.section(SectionKind::first).size() +
                                        program.section(SectionKind::update).size()));
}

/// Replays the lifetimes and reports bytes, so that plan and executor are held against each other.
std::int64_t replay_peak(const Program& program) {
  const Lifetimes l = lifetimes(program);
  const auto bytes = [&](TensorId id) { return program.tensors[static_cast<std::size_t>(id)].bytes(); };
  std::int64_t live = 0, peak = 0;
  for (const TensorId id : l.throughout) live += bytes(id);
  const std::int64_t base = live;
  for (int s = 0; s < kSectionCount; ++s) {
    for (std::int64_t r = 0; r < program.repeats(static_cast<SectionKind>(s)); ++r)
      for (const Lifetimes::AtOp& at : l.ops[static_cast<std::size_t>(s)]) {
        for (const TensorId id : at.begin) live += bytes(id);
        peak = std::max(peak, live);
        for (const TensorId id : at.end) live -= bytes(id);
      }
    if (s == static_cast<int>(SectionKind::next))
      for (const TensorId id : l.end_of_window) live -= bytes(id);
  }
  EXPECT_EQ(live, base) << "something is freed twice or never";
  return peak;
}

TEST(Bytes, LivePeak_EqualsAReplayOfTheLifetimes_InEveryRecipeAndWindow) {
  for (const char* model : {"gpt2-tiny", "llama-tiny"})
    for (const Recipe& recipe : all_recipes())
      for (const Checkpointing checkpointing : {Checkpointing::none, Checkpointing::layer})
        for (const std::int64_t micro_batches : {1, 2, 5}) {
          const Batch batch{.micro_batch = 2, .seq = 16, .micro_batches = micro_batches};
          const Program program = tiny(recipe.name, batch, with(checkpointing), model);
          EXPECT_EQ(plan_bytes(program).live_peak, replay_peak(program)) << model << " " << recipe.name << " x" << micro_batches;
        }
}

/// Fails where two live tensors share a byte or one leaves the arena.
void expect_disjoint(const Program& program, const BytePlan& plan) {
  const Lifetimes l = lifetimes(program);
  std::map<std::int64_t, std::int64_t> occupied;  // offset -> end
  const auto add = [&](TensorId id) {
    const std::int64_t begin = plan.arena_offset[static_cast<std::size_t>(id)];
    const std::int64_t end = begin + program.tensors[static_cast<std::size_t>(id)].bytes();
    if (end == begin) return;
    EXPECT_EQ(begin % kArenaAlignment, 0);
    EXPECT_LE(end, plan.arena_bytes);
    const auto next = occupied.lower_bound(begin);
    EXPECT_TRUE(next == occupied.end() || next->first >= end) << program.tensors[static_cast<std::size_t>(id)].name;
    EXPECT_TRUE(next == occupied.begin() || std::prev(next)->second <= begin) << program.tensors[static_cast<std::size_t>(id)].name;
    occupied[begin] = end;
  };
  for (const TensorId id : l.throughout) add(id);
  for (int s = 0; s < kSectionCount; ++s) {
    for (const Lifetimes::AtOp& at : l.ops[static_cast<std::size_t>(s)]) {
      for (const TensorId id : at.begin) add(id);
      for (const TensorId id : at.end) occupied.erase(plan.arena_offset[static_cast<std::size_t>(id)]);
    }
    if (s == static_cast<int>(SectionKind::next))
      for (const TensorId id : l.end_of_window) occupied.erase(plan.arena_offset[static_cast<std::size_t>(id)]);
  }
}

TEST(Bytes, Arena_HoldsTheLivePeak_AndNoTwoLiveTensorsOverlap) {
  for (const char* model : {"gpt2-tiny", "llama-tiny"})
    for (const Recipe& recipe : all_recipes())
      for (const Checkpointing checkpointing : {Checkpointing::none, Checkpointing::layer}) {
        const Batch batch{.micro_batch = 2, .seq = 16, .micro_batches = 2};
        const Program program = tiny(recipe.name, batch, with(checkpointing), model);
        const BytePlan plan = plan_bytes(program);
        EXPECT_GE(plan.arena_bytes, plan.live_peak) << recipe.name;
        expect_disjoint(program, plan);
      }
}

TEST(Bytes, MEM1_MEM2_ActivationsGrowLinearlyWithTheMicroBatch) {  // no T² term, linear in the micro-batch
  const auto activations = [](std::int64_t micro_batch, std::int64_t seq) {
    return plan_bytes(tiny("bf16-master", {.micro_batch = micro_batch, .seq = seq, .micro_batches = 1})).activation_peak;
  };
  const std::int64_t step = activations(3, 16) - activations(2, 16);
  EXPECT_EQ(activations(8, 16) - activations(3, 16), 5 * step);
  EXPECT_EQ(activations(2, 32) - activations(2, 16), activations(2, 48) - activations(2, 32));
}

TEST(Bytes, LargestMicroBatch_IsTheLastThatFits) {
  const auto live_peak = [](std::int64_t micro_batch) { return 100 + 7 * micro_batch; };
  EXPECT_EQ(largest_micro_batch(106, live_peak), 0);
  EXPECT_EQ(largest_micro_batch(107, live_peak), 1);
  EXPECT_EQ(largest_micro_batch(100 + 7 * 1000 + 6, live_peak), 1000);
  // A workspace that grows in steps, and a micro-batch past which no size can be counted any more.
  const auto with_steps = [](std::int64_t micro_batch) { return 100 + 7 * micro_batch + micro_batch / 16 * 64; };
  for (std::int64_t memory = 100; memory < 5000; memory += 13) {
    const std::int64_t largest = largest_micro_batch(memory, with_steps);
    EXPECT_TRUE(largest == 0 || with_steps(largest) <= memory) << memory;
    EXPECT_GT(with_steps(largest + 1), memory);
  }
  const auto with_end = [](std::int64_t micro_batch) {
    return micro_batch > 5 ? std::numeric_limits<std::int64_t>::max() : micro_batch;
  };
  EXPECT_EQ(largest_micro_batch(1000, with_end), 5);
}

TEST(Bytes, LargestMicroBatch_TriesFewSizesWhereGrowthIsEven) {
  int calls = 0;
  const auto live_peak = [&](std::int64_t micro_batch) {
    ++calls;
    return 1000000 + 7 * micro_batch;
  };
  EXPECT_EQ(largest_micro_batch(1000000 + 7 * 123456, live_peak), 123456);
  EXPECT_LE(calls, 8);
}

// FP8 products of sizes that are no multiples of what the target asks for: useful FLOPs keep the true sizes, padded ones show
// what runs; a target that asks for nothing pads nothing.
TEST(Lowering, FP8_3_PaddingFollowsTheTarget_AndIsVisible) {
  const auto flops = [](const Recipe& recipe, const Target& target) {
    std::array<std::int64_t, 2> sum = {};
    const Program program = lower(find_model("gpt2-tiny"), recipe, {.micro_batch = 1, .seq = 7, .micro_batches = 1}, target);
    for (const Slice& s : slice(program)) {
      const Cost cost = find_kernel(s.problem.kernel).cost(s.problem);
      for (const Format format : {Format::fp8_e4m3, Format::fp8_e5m2}) {
        sum[0] += s.count_per_update * cost.useful_flops[static_cast<std::size_t>(format)];
        sum[1] += s.count_per_update * cost.padded_flops[static_cast<std::size_t>(format)];
      }
    }
    return sum;
  };
  Target padding;
  padding.fp8_multiples = {16, 16, 16};
  for (const char* name : {"fp8-hybrid", "fp8-current", "fp8-channel", "fp8-block", "mxfp8"}) {
    SCOPED_TRACE(name);
    const Recipe& recipe = find_recipe(name);
    const auto plain = flops(recipe, Target{}), padded = flops(recipe, padding);
    EXPECT_GT(plain[0], 0);
    EXPECT_EQ(plain[0], plain[1]);
    EXPECT_EQ(padded[0], plain[0]);
    // Seven tokens become sixteen in every product: m forward and dgrad, k in wgrad.
    EXPECT_EQ(padded[1] * 7, plain[1] * 16);
  }
  EXPECT_EQ(flops(find_recipe("bf16-master"), padding), (std::array<std::int64_t, 2>{0, 0}));
}

}  // namespace
}  // namespace mixroof
