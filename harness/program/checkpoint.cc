#include "harness/program/checkpoint.h"

#include <algorithm>
#include <utility>

#include "kernels/registry.h"

namespace mixroof {
namespace {

constexpr int kNoLayer = -1;

std::size_t index(TensorId id) { return static_cast<std::size_t>(id); }

/// Calls visit(tensor, access) for each operand of an op.
template <typename Visit>
void for_each_operand(const Op& op, Visit&& visit) {
  const std::vector<Operand> operands = find_kernel(op.problem.kernel).operands(op.problem);
  for (std::size_t i = 0; i < operands.size(); ++i) visit(op.operands[i].tensor, operands[i].access);
}

/// Which tensors of a section die after a layer's forward and can be made again: those that only this layer reads.
class Recomputable {
 public:
  Recomputable(const Program& program, const std::vector<Op>& section) : layer_(program.tensors.size(), kNoLayer) {
    for (const Op& op : section)
      if (op.phase == Phase::forward && op.layer != kNoLayer)
        for_each_operand(op, [&](TensorId id, Access access) {
          const Tensor& tensor = program.tensors[index(id)];
          if (access != Access::read && !tensor.persistent && tensor.tensor_class != TensorClass::compute_copy)
            layer_[index(id)] = op.layer;
        });
    for (const Op& op : section)
      for_each_operand(op, [&](TensorId id, Access access) {
        if (access != Access::write && layer_[index(id)] != op.layer) layer_[index(id)] = kNoLayer;
      });
  }

  bool of_layer(TensorId id, int layer) const { return layer_[index(id)] == layer; }

 private:
  std::vector<int> layer_;  // whose forward makes the tensor again; kNoLayer: stays alive
};

/// The forward ops of a layer that its backward depends on, in their order.
std::vector<const Op*> ops_to_repeat(const Program& program, const std::vector<Op>& section,
                                     const Recomputable& recomputable, int layer) {
  std::vector<bool> needed(program.tensors.size());
  const auto need_inputs = [&](const Op& op) {
    for_each_operand(op, [&](TensorId id, Access access) {
      if (access != Access::write && recomputable.of_layer(id, layer)) needed[index(id)] = true;
    });
  };
  for (const Op& op : section)
    if (op.phase == Phase::backward && op.layer == layer) need_inputs(op);
  std::vector<const Op*> repeated;
  for (auto op = section.rbegin(); op != section.rend(); ++op) {
    if (op->phase != Phase::forward || op->layer != layer) continue;
    bool makes_needed = false;
    for_each_operand(*op, [&](TensorId id, Access access) {
      makes_needed = makes_needed || (access != Access::read && needed[index(id)]);
    });
    if (!makes_needed) continue;
    need_inputs(*op);
    repeated.push_back(&*op);
  }
  std::reverse(repeated.begin(), repeated.end());
  return repeated;
}

Op repeated(const Op& op, const Program& program, TensorId discarded_counts) {
  Op copy = op;
  copy.phase = Phase::backward;
  copy.recompute = true;
  if (program.fp8_counts < 0) return copy;
  for (OperandRef& operand : copy.operands)
    if (operand.tensor == program.fp8_counts || operand.tensor == program.fp8_scale_counts) operand = {discarded_counts, 0};
  return copy;
}

std::vector<Op> with_recomputation(const Program& program, const std::vector<Op>& section, TensorId discarded_counts) {
  const Recomputable recomputable(program, section);
  std::vector<Op> result;
  int current = kNoLayer;  // layer whose backward is under way
  for (const Op& op : section) {
    if (op.phase == Phase::backward && op.layer != current) {
      current = op.layer;
      if (current != kNoLayer)
        for (const Op* forward : ops_to_repeat(program, section, recomputable, current))
          result.push_back(repeated(*forward, program, discarded_counts));
    }
    result.push_back(op);
  }
  return result;
}

}  // namespace

Program with_layer_checkpointing(Program program) {
  TensorId discarded_counts = -1;
  if (program.fp8_counts >= 0) {
    discarded_counts = static_cast<TensorId>(program.tensors.size());
    program.tensors.push_back({.name = "fp8.recompute_counts",
                               .tensor_class = TensorClass::scaling_state,
                               .format = Format::fp64,
                               .shape = {2},
                               .persistent = true});
  }
  for (const SectionKind kind : {SectionKind::first, SectionKind::next})
    program.section(kind) = with_recomputation(program, program.section(kind), discarded_counts);
  program.checkpointing = Checkpointing::layer;
  return program;
}

}  // namespace mixroof
