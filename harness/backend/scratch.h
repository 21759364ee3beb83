// Device memory for one problem outside any program: operands filled as their Fill says, and the workspace. Used by
// tuning, isolated timings and checks of speed; checks of correctness have guards of their own (execute/kernel_check.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harness/backend/backend.h"

namespace mixroof {

class OperandScratch {
 public:
  /// Allocates and fills; write-only operands are touched. Long operands repeat kDistinctValues values.
  OperandScratch(Backend& backend, const Kernel& kernel, const Problem& problem, std::uint64_t seed);
  ~OperandScratch();
  OperandScratch(const OperandScratch&) = delete;
  OperandScratch& operator=(const OperandScratch&) = delete;

  std::span<void* const> operands() const { return pointers_; }
  void* workspace() const { return workspace_; }
  /// Puts the operands that a run changes in place (read_write) back to their first values.
  void restore();
  /// Whether restore() has anything to do.
  bool has_in_place_operands() const;
  std::int64_t bytes() const { return bytes_; }

 private:
  void fill(std::size_t index, std::span<const double> values);
  void release() noexcept;

  Backend& backend_;
  std::vector<Operand> operands_;
  std::vector<void*> pointers_;
  std::vector<void*> saved_;       // copies of read_write operands, null for the others
  void* workspace_ = nullptr;
  std::int64_t workspace_bytes_ = 0, bytes_ = 0;
};

}  // namespace mixroof
