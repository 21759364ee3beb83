// An isolated kernel as a Subject: operands of its own, filled as the kernel says, timed by the backend's marks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "harness/backend/backend.h"
#include "harness/backend/scratch.h"
#include "harness/measure/sampler.h"
#include "harness/roofline/roofline.h"

namespace mixroof {

/// `cold`: the caches are chilled before each sample, which is then a single run. `hot`: repeated runs on the same
/// operands, after an untimed one where the caches can hold them. Operands that a run changes in place are restored
/// before each sample, outside the timed part.
class KernelSubject : public Subject {
 public:
  /// Allocates and fills the operands (Error out_of_memory). `plan` is of this problem and this backend, which must
  /// outlive the subject. Throws std::logic_error for CacheState::in_step, which only the running update can time.
  KernelSubject(Backend& backend, const Kernel& kernel, const Problem& problem, std::unique_ptr<Plan> plan,
                CacheState cache, std::uint64_t seed);

  void prepare_sample() override;
  double run(std::int64_t repetitions) override;
  std::int64_t max_repetitions() const override;

  const Plan& plan() const { return *plan_; }
  std::int64_t operand_bytes() const { return scratch_.bytes(); }

 private:
  Backend& backend_;
  std::unique_ptr<Plan> plan_;
  CacheState cache_;
  OperandScratch scratch_;
  bool warms_up_;
};

/// The roofline's view of a kernel's cost.
Work work_of(const Cost& cost, bool emulated);

}  // namespace mixroof
