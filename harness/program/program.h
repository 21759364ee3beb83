// A training update as data: an ordered list of ops over tensors with a class, a format and a lifetime. Built by lower()
// (lower.h) without touching a device; read by execute/, by the byte plan (bytes.h), by passes and by the text dump.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "harness/backend/facts.h"
#include "harness/numeric/recipe.h"
#include "harness/program/model.h"
#include "kernels/kernel.h"

namespace mixroof {

using TensorId = int;

struct Tensor {
  std::string name;
  TensorClass tensor_class = TensorClass::activation;
  Format format = Format::fp32;
  std::vector<std::int64_t> shape;
  int layer = -1;
  bool persistent = false;      // lives across updates

  std::int64_t count() const;   // checked 64-bit
  std::int64_t bytes() const;
};

/// A tensor, or `count` of its values from `offset` on.
struct OperandRef {
  TensorId tensor = -1;
  std::int64_t offset = 0;      // values
};

enum class Phase : std::uint8_t { forward, backward, update };
inline constexpr int kPhaseCount = 3;
std::string_view name(Phase phase);

struct Op {
  std::string name;             // "h.0.attn.c_attn dgrad"
  Problem problem;
  std::vector<OperandRef> operands;  // as Kernel::operands lists them
  Phase phase = Phase::forward;
  int layer = -1;
  TensorId workspace = -1;
  bool recompute = false;       // run again in the backward phase, by a checkpointing pass
};

/// Sections run in this order: the first micro-batch of a window (gradients are written), each further one (gradients are
/// accumulated), the update. A window of one micro-batch has an empty `next`.
enum class SectionKind : std::uint8_t { first, next, update };
inline constexpr int kSectionCount = 3;
std::string_view name(SectionKind section);

struct Batch {
  std::int64_t micro_batch = 1;      // sequences
  std::int64_t seq = 128;
  std::int64_t micro_batches = 1;    // of a window
  bool packed = false;               // several documents a row: positions restart, attention stays within a document
  std::int64_t attention_pairs = 0;  // packed: mean query-key pairs of a micro-batch, for FLOPs; 0: the whole causal half
  std::int64_t tokens_per_update() const;
};

/// Which activations the backward pass finds stored: all, or those between layers, the others being computed again.
enum class Checkpointing : std::uint8_t { none, layer };
std::string_view name(Checkpointing checkpointing);
/// Throws UsageError with the valid names.
Checkpointing find_checkpointing(std::string_view name);

struct Program {
  Model model;
  const Recipe* recipe = nullptr;
  Batch batch;
  Target target;
  Checkpointing checkpointing = Checkpointing::none;
  Format grad_format = Format::fp32;  // of weight gradients: fp32 in windows of several micro-batches unless asked
  std::vector<Tensor> tensors;
  std::array<std::vector<Op>, kSectionCount> sections;

  // Named tensors the executor binds: inputs and state.
  TensorId tokens = -1, targets = -1, control = -1, losses = -1, logits = -1;
  TensorId position_ids = -1, first_key = -1;  // of a packed batch (execution.h says what they hold)
  // FP8 state, as far as the recipe's scaling has it. Per tensor, numbered alike: fp8_scale and fp8_counts [tensors, 2] (values
  // that saturated, that became zero); delayed scaling: fp8_amax, fp8_history, fp8_limits. fp8_scale_counts [2]: scales kept,
  // clamped.
  TensorId fp8_scale = -1, fp8_amax = -1, fp8_history = -1, fp8_limits = -1, fp8_counts = -1, fp8_scale_counts = -1;
  std::vector<Format> fp8_formats;    // of each FP8 tensor
  struct Parameter {
    std::string name;
    TensorId param = -1, master = -1, grad = -1, moment1 = -1, moment2 = -1;
  };
  std::vector<Parameter> parameters;  // in the model's order

  const std::vector<Op>& section(SectionKind kind) const { return sections[static_cast<std::size_t>(kind)]; }
  std::vector<Op>& section(SectionKind kind) { return sections[static_cast<std::size_t>(kind)]; }
  /// How often one update runs a section.
  std::int64_t repeats(SectionKind kind) const;
  TensorId find_tensor(std::string_view name) const;  // -1 when absent

  /// One line per tensor and op: what `mixroof plan --dump` prints.
  std::string dump() const;
};

/// A distinct problem of a program, and how often one update runs it.
struct Slice {
  Problem problem;
  Phase phase = Phase::forward;
  std::int64_t count_per_update = 0;
  std::int64_t recomputed_per_update = 0;  // of these, in the backward phase for a checkpointing pass
};
std::vector<Slice> slice(const Program& program);

}  // namespace mixroof
