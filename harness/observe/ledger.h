// The memory ledger: counts what a program really allocates, by class. A wrapper that stacks over any MemoryResource; it
// never reads a plan.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "harness/backend/backend.h"
#include "harness/program/bytes.h"

namespace mixroof {

class Ledger : public MemoryResource {
 public:
  explicit Ledger(MemoryResource& upstream) : upstream_(upstream) {}

  void* allocate(std::int64_t bytes, TensorClass tensor_class) override {
    void* pointer = upstream_.allocate(bytes, tensor_class);
    current_[static_cast<std::size_t>(tensor_class)] += bytes;
    total_ += bytes;
    ++allocations_;
    if (total_ > peak_) {
      peak_ = total_;
      at_peak_ = current_;
    }
    return pointer;
  }
  void deallocate(void* pointer, std::int64_t bytes, TensorClass tensor_class) noexcept override {
    upstream_.deallocate(pointer, bytes, tensor_class);
    current_[static_cast<std::size_t>(tensor_class)] -= bytes;
    total_ -= bytes;
  }

  std::int64_t current_bytes() const { return total_; }
  std::int64_t peak_bytes() const { return peak_; }
  const BytesByClass& current() const { return current_; }
  const BytesByClass& at_peak() const { return at_peak_; }
  std::int64_t allocations() const { return allocations_; }
  /// Starts a new peak from what is alive now.
  void reset_peak() {
    peak_ = total_;
    at_peak_ = current_;
  }

 private:
  MemoryResource& upstream_;
  BytesByClass current_ = {}, at_peak_ = {};
  std::int64_t total_ = 0, peak_ = 0, allocations_ = 0;
};

}  // namespace mixroof
