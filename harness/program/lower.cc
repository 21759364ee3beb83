#include "harness/program/lower.h"

#include <fmt/format.h>

#include <stdexcept>

#include "harness/program/builder.h"
#include "harness/program/checkpoint.h"

namespace mixroof {
namespace {

struct FamilyLowering {
  std::string_view family;
  void (*lower)(ProgramBuilder& builder);
};
constexpr FamilyLowering kFamilies[] = {{"gpt2", lower_gpt2}, {"llama", lower_llama}};

void require(bool is_met, std::string_view what, std::int64_t value, std::string_view remedy) {
  if (!is_met) throw UsageError(fmt::format("{} is {}: {}", what, value, remedy));
}

void validate_batch(const Model& model, const Batch& batch) {
  require(batch.micro_batch >= 1, "--micro-batch", batch.micro_batch, "at least 1 sequence is needed");
  require(batch.seq >= 1, "--seq", batch.seq, "at least 1 position is needed");
  require(batch.micro_batches >= 1, "micro-batches per update", batch.micro_batches, "at least 1 is needed");
  require(batch.seq <= model.context, "--seq", batch.seq,
          fmt::format("{} has positions for {}; choose at most that", model.name, model.context));
  if (batch.attention_pairs != 0 && !batch.packed)
    throw std::logic_error("attention pairs are counted for packed batches only");
}

}  // namespace

Program lower(const Model& model, const Recipe& recipe, const Batch& batch, const Target& target,
              const LowerOptions& options) {
  validate(model);
  validate_batch(model, batch);
  for (const FamilyLowering& family : kFamilies) {
    if (family.family != model.family) continue;
    ProgramBuilder builder(model, recipe, batch, target, options);
    family.lower(builder);
    builder.update_section();
    return options.checkpointing == Checkpointing::layer ? with_layer_checkpointing(builder.take()) : builder.take();
  }
  throw std::logic_error(fmt::format("model family '{}' has no lowering", model.family));
}

}  // namespace mixroof
