// The reference backend: every tensor is kept in double and every op runs its kernel's plain reference. Slow, exact to
// rounding in double, and the judge of the others.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include "harness/backend/backend.h"
#include "harness/backend/cpu/cpu_memory.h"
#include "harness/backend/host.h"
#include "kernels/registry.h"

namespace mixroof {
namespace {

class ReferencePlan : public Plan {
 public:
  explicit ReferencePlan(const Problem& problem) : problem_(problem), kernel_(find_kernel(problem.kernel)) {
    for (const Operand& operand : kernel_.operands(problem)) counts_.push_back(operand.count());
  }
  void run(const Launch& launch) const override {
    std::vector<RefOperand> operands(counts_.size());
    for (std::size_t i = 0; i < counts_.size(); ++i)
      operands[i] = {.data = static_cast<double*>(launch.operands[i]), .count = counts_[i]};
    kernel_.reference(problem_, operands);
  }
  std::string implementation() const override { return "reference double"; }

 private:
  Problem problem_;
  const Kernel& kernel_;
  std::vector<std::int64_t> counts_;
};

class ReferenceBackend : public Backend {
 public:
  ReferenceBackend() : memory_(make_cpu_memory()) {
    const HostFacts host = read_host();
    facts_.backend = "reference";
    facts_.name = "plain double precision on " + host.cpu;
    facts_.arch = "x86-64";
    facts_.paths = {"scalar"};
    facts_.memory_bytes = host.memory_bytes;
  }

  const DeviceFacts& facts() const override { return facts_; }
  Target target() const override { return {.backend = "reference", .threads = 1}; }
  std::int64_t storage_bytes(Format, std::int64_t count) const override {
    return count * static_cast<std::int64_t>(sizeof(double));
  }
  MemoryResource& memory() override { return *memory_; }
  std::int64_t memory_free_bytes() const override { return read_memory_available_bytes().value_or(facts_.memory_bytes); }

  void write(void* destination, Format, std::span<const double> values) override {
    copy(destination, values.data(), static_cast<std::int64_t>(values.size_bytes()));
  }
  void read(const void* source, Format, std::span<double> values) override {
    copy(values.data(), source, static_cast<std::int64_t>(values.size_bytes()));
  }
  void copy(void* destination, const void* source, std::int64_t bytes) override {
    if (bytes > 0) std::memcpy(destination, source, static_cast<std::size_t>(bytes));
  }
  void fill_bytes(void* destination, unsigned char value, std::int64_t bytes) override {
    if (bytes > 0) std::memset(destination, value, static_cast<std::size_t>(bytes));
  }

  Support supports(const Problem&) const override { return {}; }
  std::vector<std::string> implementations(const Problem&) const override { return {"reference"}; }
  std::unique_ptr<Plan> prepare(const Problem& problem, std::string_view) override {
    return std::make_unique<ReferencePlan>(problem);
  }
  TuningRecord& tuning() override { return tuning_; }

  void run(const Plan& plan, std::span<void* const> operands, void* workspace) override {
    plan.run({.operands = operands, .workspace = workspace});
  }
  void reserve_marks(std::size_t count) override { marks_.resize(std::max(count, marks_.size())); }
  void mark(std::size_t number) override { marks_[number] = std::chrono::steady_clock::now(); }
  void synchronize() override {}
  double seconds_between(std::size_t from, std::size_t to) const override {
    return std::chrono::duration<double>(marks_[to] - marks_[from]).count();
  }
  void chill() override {}

 private:
  DeviceFacts facts_;
  std::unique_ptr<MemoryResource> memory_;
  TuningRecord tuning_;
  std::vector<std::chrono::steady_clock::time_point> marks_;
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace mixroof
