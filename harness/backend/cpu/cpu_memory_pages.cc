#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdlib>

#include "harness/backend/cpu/cpu_memory.h"

namespace mixroof {
namespace {

constexpr std::int64_t kPageBytes = 4096;
constexpr std::int64_t kMapFrom = 64 * 1024;            // smaller tensors share the heap
constexpr std::int64_t kHugePagesFrom = 4 * 1024 * 1024;

class PageMemory : public MemoryResource {
 public:
  void* allocate(std::int64_t bytes, TensorClass) override {
    if (bytes < kMapFrom) {
      void* pointer = std::aligned_alloc(64, static_cast<std::size_t>((bytes / 64 + 1) * 64));
      if (pointer == nullptr) refuse(bytes);
      return pointer;
    }
    void* pointer = mmap(nullptr, mapped(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pointer == MAP_FAILED) refuse(bytes);
    // Page faults of 4 KiB would show up as time of the first kernels that touch a tensor.
    if (bytes >= kHugePagesFrom) madvise(pointer, mapped(bytes), MADV_HUGEPAGE);
    return pointer;
  }

  void deallocate(void* pointer, std::int64_t bytes, TensorClass) noexcept override {
    if (bytes < kMapFrom)
      std::free(pointer);
    else
      munmap(pointer, mapped(bytes));
  }

 private:
  static std::size_t mapped(std::int64_t bytes) {
    return static_cast<std::size_t>((bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
  }
  [[noreturn]] static void refuse(std::int64_t bytes) {
    throw Error(Status::out_of_memory, fmt::format("cpu: the system refused {} bytes (choose a smaller micro-batch)", bytes));
  }
};

}  // namespace

std::unique_ptr<MemoryResource> make_cpu_memory() { return std::make_unique<PageMemory>(); }

}  // namespace mixroof
