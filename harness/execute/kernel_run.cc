#include "harness/execute/kernel_run.h"

namespace mixroof {
namespace {

/// Device memory that ends with its scope.
class DeviceBuffer {
 public:
  DeviceBuffer(MemoryResource& memory, std::int64_t bytes)
      : memory_(memory), bytes_(bytes), data_(memory.allocate(bytes, TensorClass::workspace)) {}
  ~DeviceBuffer() { memory_.deallocate(data_, bytes_, TensorClass::workspace); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  void* data() const { return data_; }

 private:
  MemoryResource& memory_;
  std::int64_t bytes_;
  void* data_;
};

}  // namespace

std::vector<std::vector<double>> run_on(Backend& backend, const Kernel& kernel, const Problem& problem, const Plan& plan,
                                        const std::vector<std::vector<double>>& inputs) {
  const std::vector<Operand> operands = kernel.operands(problem);
  std::vector<std::unique_ptr<DeviceBuffer>> buffers;
  std::vector<void*> pointers;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const std::int64_t bytes = backend.storage_bytes(operands[i].format, operands[i].count());
    buffers.push_back(std::make_unique<DeviceBuffer>(backend.memory(), bytes));
    pointers.push_back(buffers.back()->data());
    if (operands[i].access != Access::write) backend.write(pointers[i], operands[i].format, inputs[i]);
  }
  const DeviceBuffer workspace(backend.memory(), kernel.workspace_bytes(problem, backend.target()));
  backend.run(plan, pointers, workspace.data());
  backend.synchronize();
  std::vector<std::vector<double>> results;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    results.emplace_back(static_cast<std::size_t>(operands[i].count()));
    backend.read(pointers[i], operands[i].format, results[i]);
  }
  return results;
}

std::vector<std::vector<double>> run_on(Backend& backend, const Kernel& kernel, const Problem& problem,
                                        const std::vector<std::vector<double>>& inputs) {
  return run_on(backend, kernel, problem, *backend.prepare(problem), inputs);
}

}  // namespace mixroof
