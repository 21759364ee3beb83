#include <fmt/format.h>

#include <new>

#include "harness/backend/cpu/cpu_memory.h"

namespace mixroof {
namespace {

class HeapMemory : public MemoryResource {
 public:
  void* allocate(std::int64_t bytes, TensorClass) override {
    void* pointer = ::operator new(static_cast<std::size_t>(bytes), std::align_val_t{64}, std::nothrow);
    if (pointer == nullptr)
      throw Error(Status::out_of_memory, fmt::format("cpu: the system refused {} bytes (choose a smaller micro-batch)", bytes));
    return pointer;
  }
  void deallocate(void* pointer, std::int64_t, TensorClass) noexcept override {
    ::operator delete(pointer, std::align_val_t{64});
  }
};

}  // namespace

std::unique_ptr<MemoryResource> make_cpu_memory() { return std::make_unique<HeapMemory>(); }

}  // namespace mixroof
