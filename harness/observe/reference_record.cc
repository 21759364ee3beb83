#include "harness/observe/reference_record.h"

#include <fmt/format.h>

namespace mixroof {
namespace {

// Below this a tensor is kept whole: biases and gains are few and one value of them matters.
constexpr std::int64_t kWholeBelow = 16384;

std::string key(std::int64_t micro_batch, const std::string& op, const std::string& tensor) {
  return fmt::format("{}|{}|{}", micro_batch, op, tensor);
}

}  // namespace

SparseValues ReferenceRecord::sparse(std::span<const double> values) const {
  SparseValues kept;
  if (static_cast<std::int64_t>(values.size()) >= kWholeBelow) kept.stride = stride_;
  kept.values.reserve(values.size() / static_cast<std::size_t>(kept.stride) + 1);
  for (std::size_t i = 0; i < values.size(); i += static_cast<std::size_t>(kept.stride))
    kept.values.push_back(static_cast<float>(values[i]));
  return kept;
}

void ReferenceRecord::put(std::int64_t micro_batch, const std::string& op, const std::string& tensor,
                          std::span<const double> values) {
  tensors_[key(micro_batch, op, tensor)] = sparse(values);
}

const SparseValues* ReferenceRecord::find(std::int64_t micro_batch, const std::string& op,
                                          const std::string& tensor) const {
  const auto found = tensors_.find(key(micro_batch, op, tensor));
  return found == tensors_.end() ? nullptr : &found->second;
}

std::int64_t stride_that_fits(const Program& fp32, std::int64_t bytes) {
  double values = 0;
  for (const SectionKind kind : {SectionKind::first, SectionKind::next})
    for (const Op& op : fp32.section(kind))
      for (const OpOutput& output : number_outputs(fp32, op))
        values += static_cast<double>(output.count) * static_cast<double>(fp32.repeats(kind));
  for (const Program::Parameter& parameter : fp32.parameters)  // gradient, step, two moments
    values += 4 * static_cast<double>(fp32.tensors[static_cast<std::size_t>(parameter.param)].count());
  const double wanted = values * static_cast<double>(bytes_of(Format::fp32));
  const auto stride = static_cast<std::int64_t>(wanted / static_cast<double>(std::max<std::int64_t>(bytes, 1))) + 1;
  return stride | 1;
}

void ReferenceRecorder::before(const Op& op) {
  locator_.enter(op);
  const Program::Parameter* parameter = optimized_parameter(execution_.program(), op);
  if (parameter == nullptr) return;
  RecordedUpdate& update = record_.update_of(parameter->name);
  update.grad = record_.sparse(execution_.read(parameter->grad));
  update.grad_factor = slot(execution_.read(execution_.program().control).data(), Slot::grad_factor);
  before_update_ = execution_.read(parameter->param);
}

void ReferenceRecorder::after(const Op& op) {
  const Program& program = execution_.program();
  if (const Program::Parameter* parameter = optimized_parameter(program, op)) {
    record_update(*parameter);
    return;
  }
  if (op.recompute) return;
  for (const OpOutput& output : number_outputs(program, op)) {
    const std::string& name = program.tensors[static_cast<std::size_t>(output.tensor)].name;
    if (!wanted_.contains(name)) continue;
    const std::vector<double> values = execution_.read(output.tensor);
    record_.put(
        locator_.micro_batch(), op.name, name,
        std::span(values).subspan(static_cast<std::size_t>(output.offset), static_cast<std::size_t>(output.count)));
  }
}

void ReferenceRecorder::record_update(const Program::Parameter& parameter) {
  std::vector<double> step = execution_.read(parameter.param);
  for (std::size_t i = 0; i < step.size(); ++i) step[i] -= before_update_[i];
  RecordedUpdate& update = record_.update_of(parameter.name);
  update.step = record_.sparse(step);
  update.moment1 = record_.sparse(execution_.read(parameter.moment1));
  update.moment2 = record_.sparse(execution_.read(parameter.moment2));
}

}  // namespace mixroof
