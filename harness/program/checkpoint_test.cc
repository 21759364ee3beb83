#include "harness/program/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "harness/program/bytes.h"
#include "harness/program/lower.h"
#include "kernels/registry.h"

namespace mixroof {
namespace {

using testing::ElementsAre;

const Target kTarget{.backend = "cpu", .threads = 2};

Program program(const Model& model, std::string_view recipe, Checkpointing checkpointing, const Batch& batch) {
  LowerOptions options;
  options.checkpointing = checkpointing;
  return lower(model, find_recipe(recipe), batch, kTarget, options);
}

Program checkpointed(std::string_view model, std::string_view recipe, std::int64_t micro_batches = 1) {
  return program(find_model(model), recipe, Checkpointing::layer, {.micro_batch = 2, .seq = 16, .micro_batches = micro_batches});
}

std::vector<std::string> recomputed(const Program& p, SectionKind section, int layer) {
  std::vector<std::string> names;
  for (const Op& op : p.section(section))
    if (op.recompute && op.layer == layer) names.push_back(op.name);
  return names;
}

const char* const kModels[] = {"gpt2-tiny", "llama-tiny"};

TEST(Checkpoint, Gpt2LayersAreComputedAgain_UpToWhatTheirBackwardReads) {
  // The last linear and the residual after it feed only the next layer, whose input stays alive.
  EXPECT_THAT(recomputed(checkpointed("gpt2-tiny", "fp32"), SectionKind::first, 1),
              ElementsAre("h.1.ln_1 forward", "h.1.attn.c_attn forward", "h.1.attn forward", "h.1.attn.c_proj forward",
                          "h.1.attn.residual", "h.1.ln_2 forward", "h.1.mlp.c_fc forward", "h.1.mlp.gelu forward"));
}

TEST(Checkpoint, LlamaLayersAreComputedAgain_RotationIncluded) {
  EXPECT_THAT(recomputed(checkpointed("llama-tiny", "fp32"), SectionKind::first, 0),
              ElementsAre("model.layers.0.input_layernorm forward", "model.layers.0.self_attn.qkv_proj forward",
                          "model.layers.0.self_attn.rope forward", "model.layers.0.self_attn forward",
                          "model.layers.0.self_attn.o_proj forward", "model.layers.0.self_attn.residual",
                          "model.layers.0.post_attention_layernorm forward", "model.layers.0.mlp.gate_up_proj forward",
                          "model.layers.0.mlp.swiglu forward"));
}

TEST(Checkpoint, RecomputationStandsRightBeforeTheBackwardOfItsLayer_InTheBackwardPhase) {
  for (const char* model : kModels)
    for (const std::int64_t micro_batches : {1, 2}) {
      const Program p = checkpointed(model, "bf16-master", micro_batches);
      EXPECT_EQ(p.checkpointing, Checkpointing::layer);
      for (const SectionKind kind : {SectionKind::first, SectionKind::next}) {
        std::set<int> finished;  // layers whose backward has begun
        for (const Op& op : p.section(kind)) {
          if (op.recompute) {
            EXPECT_EQ(op.phase, Phase::backward);
            EXPECT_FALSE(finished.contains(op.layer)) << op.name;
          } else if (op.phase == Phase::backward && op.layer >= 0) {
            finished.insert(op.layer);
          }
        }
        EXPECT_EQ(finished.size(), kind == SectionKind::first || micro_batches > 1 ? 2u : 0u);
      }
    }
}

/// Every read finds what it wants alive: in a program without checkpointing too, so only the pass can break it.
TEST(Checkpoint, NoOpReadsATensorThatHasEnded) {
  for (const char* model : kModels)
    for (const char* recipe : {"fp32", "fp16-autocast", "fp8-hybrid"}) {
      const Program p = checkpointed(model, recipe, 2);
      const Lifetimes l = lifetimes(p);
      std::set<TensorId> alive(l.throughout.begin(), l.throughout.end());
      for (int s = 0; s < kSectionCount; ++s) {
        const auto kind = static_cast<SectionKind>(s);
        for (std::size_t i = 0; i < p.section(kind).size(); ++i) {
          const Lifetimes::AtOp& at = l.ops[static_cast<std::size_t>(s)][i];
          alive.insert(at.begin.begin(), at.begin.end());
          for (const OperandRef& operand : p.section(kind)[i].operands)
            EXPECT_TRUE(alive.contains(operand.tensor)) << p.section(kind)[i].name;
          for (const TensorId id : at.end) alive.erase(id);
        }
      }
    }
}

TEST(Checkpoint, WeightCopiesAreNotMadeAgain) {
  for (const char* model : kModels)
    for (const char* recipe : {"bf16-autocast", "fp8-hybrid"}) {
      const Program p = checkpointed(model, recipe);
      for (const Op& op : p.section(SectionKind::first)) {
        if (!op.recompute) continue;
        const std::vector<Operand> operands = find_kernel(op.problem.kernel).operands(op.problem);
        for (std::size_t i = 0; i < operands.size(); ++i) {
          const Tensor& tensor = p.tensors[static_cast<std::size_t>(op.operands[i].tensor)];
          EXPECT_TRUE(operands[i].access == Access::read || tensor.tensor_class != TensorClass::compute_copy) << op.name;
        }
      }
    }
}

TEST(Checkpoint, QuantizingAgain_CountsNothingAgain) {
  const Program p = checkpointed("gpt2-tiny", "fp8-hybrid", 2);
  int quantized = 0;
  for (const SectionKind kind : {SectionKind::first, SectionKind::next})
    for (const Op& op : p.section(kind))
      if (op.recompute && op.problem.kernel == "quantize") {
        ++quantized;
        for (const OperandRef& operand : op.operands) EXPECT_NE(operand.tensor, p.fp8_counts) << op.name;
      }
  EXPECT_EQ(quantized, 2 * 2 * 4);  // inputs of four linears, two layers, two sections
}

TEST(Checkpoint, AtDepth_ActivationsAndThePeakAreSmaller) {
  for (const char* name : kModels)
    for (const char* recipe : {"fp32", "fp16-master", "fp8-hybrid"})
      for (const std::int64_t micro_batches : {1, 3}) {
        Model model = find_model(name);
        model.layers = 8;
        const Batch batch{.micro_batch = 16, .seq = 64, .micro_batches = micro_batches};
        const BytePlan all = plan_bytes(program(model, recipe, Checkpointing::none, batch));
        const BytePlan some = plan_bytes(program(model, recipe, Checkpointing::layer, batch));
        EXPECT_LT(some.live_peak, all.live_peak) << name << " " << recipe;
        // One layer and the inputs of the others: well below half of eight layers.
        EXPECT_LT(some.activation_peak, all.activation_peak / 2) << name << " " << recipe;
        EXPECT_LT(some.arena_bytes, all.arena_bytes) << name << " " << recipe;
        EXPECT_EQ(live_peak_bytes(program(model, recipe, Checkpointing::layer, batch)), some.live_peak);
      }
}

TEST(Checkpoint, SlicesSayHowOftenAnOpIsRepeated) {
  for (const char* model : kModels) {
    const Batch batch{.micro_batch = 2, .seq = 16, .micro_batches = 3};
    std::int64_t repeated = 0, model_ops = 0, plain_ops = 0;
    for (const Slice& s : slice(program(find_model(model), "fp32", Checkpointing::layer, batch))) {
      repeated += s.recomputed_per_update;
      model_ops += s.count_per_update - s.recomputed_per_update;
      EXPECT_LE(s.recomputed_per_update, s.count_per_update);
    }
    for (const Slice& s : slice(program(find_model(model), "fp32", Checkpointing::none, batch))) {
      plain_ops += s.count_per_update;
      EXPECT_EQ(s.recomputed_per_update, 0);
    }
    EXPECT_EQ(model_ops, plain_ops) << model;
    const Program p = checkpointed(model, "fp32");
    const auto per_layer = static_cast<std::int64_t>(recomputed(p, SectionKind::first, 0).size());
    EXPECT_EQ(repeated, 3 * 2 * per_layer) << model;
  }
}

TEST(Checkpoint, TheDumpMarksRecomputation) {
  EXPECT_THAT(checkpointed("gpt2-tiny", "fp32").dump(),
              testing::AllOf(testing::HasSubstr("checkpointing=layer"), testing::HasSubstr("backward recompute h.0.ln_1 forward")));
}

TEST(Checkpoint, UnknownWordsAreRefused) {
  EXPECT_EQ(find_checkpointing("layer"), Checkpointing::layer);
  EXPECT_EQ(find_checkpointing("none"), Checkpointing::none);
  EXPECT_THROW(find_checkpointing("layers"), UsageError);
}

}  // namespace
}  // namespace mixroof
