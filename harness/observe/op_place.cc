#include "harness/observe/op_place.h"

#include "kernels/adamw/adamw.h"
#include "kernels/registry.h"

namespace mixroof {
namespace {

bool starts(const std::vector<Op>& section, const Op& op) { return !section.empty() && &section.front() == &op; }

bool carries_numbers(const Tensor& tensor) {
  return tensor.tensor_class != TensorClass::tokens && tensor.tensor_class != TensorClass::workspace &&
         tensor.tensor_class != TensorClass::scaling_state;
}

}  // namespace

void OpLocator::enter(const Op& op) {
  if (starts(program_.section(SectionKind::first), op)) micro_batch_ = 1;
  if (starts(program_.section(SectionKind::next), op)) ++micro_batch_;
  if (starts(program_.section(SectionKind::update), op)) micro_batch_ = 0;
}

Place OpLocator::place(const Op& op, std::string tensor) const {
  return {.update = update_,
          .micro_batch = micro_batch_,
          .phase = op.phase,
          .layer = op.layer,
          .op = op.name,
          .tensor = std::move(tensor)};
}

std::vector<OpOutput> number_outputs(const Program& program, const Op& op) {
  const std::vector<Operand> operands = find_kernel(op.problem.kernel).operands(op.problem);
  std::vector<OpOutput> outputs;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const OperandRef& ref = op.operands[i];
    if (operands[i].access != Access::read && carries_numbers(program.tensors[static_cast<std::size_t>(ref.tensor)]))
      outputs.push_back({.tensor = ref.tensor, .offset = ref.offset, .count = operands[i].count()});
  }
  return outputs;
}

const Program::Parameter* optimized_parameter(const Program& program, const Op& op) {
  if (op.problem.kernel != adamw_kernel().name()) return nullptr;
  for (const Program::Parameter& parameter : program.parameters)
    if (parameter.grad == op.operands.front().tensor) return &parameter;
  return nullptr;
}

}  // namespace mixroof
