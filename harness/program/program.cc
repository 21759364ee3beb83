#include "harness/program/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <unordered_map>

#include "harness/numeric/checked.h"
#include "harness/status.h"

namespace mixroof {

std::int64_t Tensor::count() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count = checked_product({count, size});
  return count;
}

std::int64_t Tensor::bytes() const { return checked_product({count(), bytes_of(format)}); }

std::string_view name(Phase phase) {
  switch (phase) {
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    case Phase::update: return "update";
  }
  return "update";
}

std::string_view name(SectionKind section) {
  switch (section) {
    case SectionKind::first: return "first micro-batch";
    case SectionKind::next: return "further micro-batches";
    case SectionKind::update: return "update";
  }
  return "update";
}

std::string_view name(Checkpointing checkpointing) {
  return checkpointing == Checkpointing::layer ? "layer" : "none";
}

Checkpointing find_checkpointing(std::string_view wanted) {
  static const std::vector<std::string> names = {"none", "layer"};
  if (wanted == names[0]) return Checkpointing::none;
  if (wanted == names[1]) return Checkpointing::layer;
  throw_unknown("checkpointing", wanted, names, "mixroof run --help");
}

std::int64_t Batch::tokens_per_update() const { return checked_product({micro_batch, seq, micro_batches}); }

std::int64_t Program::repeats(SectionKind kind) const {
  return kind == SectionKind::next ? batch.micro_batches - 1 : 1;
}

TensorId Program::find_tensor(std::string_view wanted) const {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].name == wanted) return static_cast<TensorId>(i);
  return -1;
}

namespace {

std::string operand_text(const Program& program, const OperandRef& ref) {
  const std::string& name = program.tensors[static_cast<std::size_t>(ref.tensor)].name;
  return ref.offset == 0 ? name : fmt::format("{}[{}:]", name, ref.offset);
}

}  // namespace

std::string Program::dump() const {
  std::string text = fmt::format(
      "program {} {} micro_batch={} seq={} micro_batches={} packed={} checkpointing={} target={} threads={}\n", model.name,
      recipe->name, batch.micro_batch, batch.seq, batch.micro_batches, batch.packed ? "yes" : "no",
      mixroof::name(checkpointing), target.backend, target.threads);
  for (const Tensor& tensor : tensors)
    text += fmt::format("tensor {} {} {} [{}] {} bytes{}\n", tensor.name, mixroof::name(tensor.tensor_class),
                        mixroof::name(tensor.format), fmt::join(tensor.shape, ","), tensor.bytes(),
                        tensor.persistent ? " persistent" : "");
  for (int s = 0; s < kSectionCount; ++s) {
    const auto kind = static_cast<SectionKind>(s);
    text += fmt::format("section {} (x{}, {} ops)\n", mixroof::name(kind), section(kind).empty() ? 0 : repeats(kind),
                        section(kind).size());
    for (const Op& op : section(kind)) {
      std::vector<std::string> operands;
      for (const OperandRef& ref : op.operands) operands.push_back(operand_text(*this, ref));
      text += fmt::format("  {}{} {}: {} ({})\n", mixroof::name(op.phase), op.recompute ? " recompute" : "", op.name,
                          op.problem.id(), fmt::join(operands, ", "));
    }
  }
  return text;
}

std::vector<Slice> slice(const Program& program) {
  std::vector<Slice> slices;
  std::unordered_map<std::string, std::size_t> known;
  for (int s = 0; s < kSectionCount; ++s) {
    const auto kind = static_cast<SectionKind>(s);
    for (const Op& op : program.section(kind)) {
      const auto [found, is_new] = known.try_emplace(op.problem.id(), slices.size());
      if (is_new) slices.push_back({.problem = op.problem, .phase = op.phase});
      slices[found->second].count_per_update += program.repeats(kind);
      if (op.recompute) slices[found->second].recomputed_per_update += program.repeats(kind);
    }
  }
  return slices;
}

}  // namespace mixroof
