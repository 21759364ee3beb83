// The kernels of the updates alone: every distinct op of every recipe's program, checked, then timed with cold and with
// hot caches. The same op in several formats is timed together, interleaved.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness/measure/kernel_subject.h"
#include "harness/measure/run_config.h"
#include "harness/measure/sampler.h"
#include "harness/roofline/roofline.h"

namespace mixroof {

struct KernelUse {
  const Recipe* recipe;
  std::int64_t count_per_update;
  std::int64_t recomputed_per_update = 0;
};

/// One distinct problem of the run.
struct KernelRecord {
  Problem problem;
  Phase phase = Phase::forward;
  std::vector<KernelUse> uses;
  Status status = Status::ok;   // incorrect: no times
  std::string reason;
  std::string implementation;
  bool emulated = false;
  SampleResult cold, hot;
};

/// Distinct problems of all recipes with their uses, in program order.
std::vector<KernelRecord> distinct_kernels(const RunConfig& config, const Target& target);

/// Why a kernel may not show a rate: a few small cases of it against its reference, each recipe's once.
class KernelEvidence {
 public:
  KernelEvidence(Backend& backend, std::uint64_t seed) : backend_(backend), seed_(seed) {}

  /// Empty when the kernel is correct in every recipe that uses the record's problem.
  std::string fault(const KernelRecord& record);

 private:
  const std::string& fault(const std::string& kernel_name, const Recipe& recipe);

  Backend& backend_;
  std::uint64_t seed_;
  std::map<std::pair<std::string, std::string>, std::string> faults_;
};

/// What is timed of a record; fills implementation and emulated. Throws Error with the record's status: incorrect,
/// not_supported, out_of_memory.
std::unique_ptr<KernelSubject> open_kernel(KernelRecord& record, KernelEvidence& evidence, Backend& backend,
                                           CacheState cache, std::uint64_t seed);

/// Target of the median's interval, relative: a record is converged when it was reached.
inline constexpr double kKernelHalfWidth = 0.02;

/// Fills the records; `on_record` is called as each is finished. Those that the budget or a stop left out have no samples.
void time_kernels(const RunConfig& config, Backend& backend, double budget_s, const RunEvents& events,
                  std::vector<KernelRecord>& records, const std::function<void(const KernelRecord&)>& on_record);

}  // namespace mixroof
