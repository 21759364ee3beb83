#include "harness/backend/scratch.h"

#include <algorithm>

#include "kernels/fill.h"

namespace mixroof {

OperandScratch::OperandScratch(Backend& backend, const Kernel& kernel, const Problem& problem, std::uint64_t seed)
    : backend_(backend), operands_(kernel.operands(problem)) {
  pointers_.resize(operands_.size(), nullptr);
  saved_.resize(operands_.size(), nullptr);
  try {
    std::vector<std::vector<double>> values(operands_.size());
    bool is_complete = true;
    for (std::size_t i = 0; i < operands_.size(); ++i)
      if (operands_[i].access != Access::write) {
        values[i] = fill_values(operands_[i], operand_seed(seed, problem, operands_[i].name));
        is_complete = is_complete && static_cast<std::int64_t>(values[i].size()) == operands_[i].count();
      }
    // Dependent inputs need whole operands; where they are longer than the distinct values, plausible ones must do.
    if (is_complete) kernel.complete_inputs(problem, values);
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      const std::int64_t bytes = backend_.storage_bytes(operands_[i].format, operands_[i].count());
      pointers_[i] = backend_.memory().allocate(bytes, TensorClass::workspace);
      bytes_ += bytes;
      fill(i, values[i]);
      if (operands_[i].access == Access::read_write) {
        saved_[i] = backend_.memory().allocate(bytes, TensorClass::workspace);
        backend_.copy(saved_[i], pointers_[i], bytes);
      }
    }
    workspace_bytes_ = kernel.workspace_bytes(problem, backend_.target());
    workspace_ = backend_.memory().allocate(workspace_bytes_, TensorClass::workspace);
    backend_.fill_bytes(workspace_, 0, workspace_bytes_);
  } catch (...) {
    release();
    throw;
  }
}

OperandScratch::~OperandScratch() { release(); }

void OperandScratch::fill(std::size_t index, std::span<const double> values) {
  const Operand& operand = operands_[index];
  auto* bytes = static_cast<unsigned char*>(pointers_[index]);
  const std::int64_t count = operand.count();
  const std::int64_t first = std::min<std::int64_t>(static_cast<std::int64_t>(values.size()), count);
  backend_.write(bytes, operand.format, values.first(static_cast<std::size_t>(first)));
  if (first == 0) {
    backend_.fill_bytes(bytes, 0, backend_.storage_bytes(operand.format, count));
    return;
  }
  for (std::int64_t done = first; done < count; done += first)
    backend_.copy(bytes + backend_.storage_bytes(operand.format, done), bytes,
                  backend_.storage_bytes(operand.format, std::min(first, count - done)));
}

void OperandScratch::restore() {
  for (std::size_t i = 0; i < operands_.size(); ++i)
    if (saved_[i] != nullptr)
      backend_.copy(pointers_[i], saved_[i], backend_.storage_bytes(operands_[i].format, operands_[i].count()));
}

bool OperandScratch::has_in_place_operands() const {
  return std::any_of(saved_.begin(), saved_.end(), [](const void* saved) { return saved != nullptr; });
}

void OperandScratch::release() noexcept {
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    const std::int64_t bytes = backend_.storage_bytes(operands_[i].format, operands_[i].count());
    if (pointers_[i] != nullptr) backend_.memory().deallocate(pointers_[i], bytes, TensorClass::workspace);
    if (saved_[i] != nullptr) backend_.memory().deallocate(saved_[i], bytes, TensorClass::workspace);
  }
  if (workspace_ != nullptr) backend_.memory().deallocate(workspace_, workspace_bytes_, TensorClass::workspace);
}

}  // namespace mixroof
