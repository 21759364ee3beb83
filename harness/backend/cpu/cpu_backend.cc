// The CPU backend: always built, always works. Work runs on the calling thread and its OpenMP workers, in order.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "harness/backend/backend.h"
#include "harness/backend/cpu/cpu_memory.h"
#include "harness/backend/cpu/parallel.h"
#include "harness/backend/cpu/processor_state.h"
#include "harness/backend/host.h"
#include "harness/backend/scratch.h"
#include "harness/numeric/codec.h"
#include "kernels/registry.h"

namespace mixroof {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kUnknownCacheBytes = 32 * 1024 * 1024;

DeviceFacts read_facts(int threads) {
  const HostFacts host = read_host();
  DeviceFacts facts;
  facts.backend = "cpu";
  facts.name = host.cpu;
  facts.paths = instruction_paths();
  facts.arch = "x86-64 " + facts.paths.front();
  facts.units = threads > 0 ? threads : host.cores_used;
  facts.memory_bytes = host.memory_bytes;
  facts.caches = host.caches;
  return facts;
}

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(int threads) : facts_(read_facts(threads)), memory_(make_cpu_memory()) {
    set_worker_count(facts_.units);
    set_processor_state();
  }

  const DeviceFacts& facts() const override { return facts_; }
  Target target() const override { return {.backend = "cpu", .threads = facts_.units}; }
  std::int64_t storage_bytes(Format format, std::int64_t count) const override { return count * bytes_of(format); }
  MemoryResource& memory() override { return *memory_; }
  std::int64_t memory_free_bytes() const override { return read_memory_available_bytes().value_or(facts_.memory_bytes); }

  void write(void* destination, Format format, std::span<const double> values) override {
    encode(format, values.data(), destination, static_cast<std::int64_t>(values.size()));
  }
  void read(const void* source, Format format, std::span<double> values) override {
    decode(format, source, values.data(), static_cast<std::int64_t>(values.size()));
  }
  void copy(void* destination, const void* source, std::int64_t bytes) override {
    if (bytes > 0) std::memcpy(destination, source, static_cast<std::size_t>(bytes));
  }
  void fill_bytes(void* destination, unsigned char value, std::int64_t bytes) override {
    if (bytes > 0) std::memset(destination, value, static_cast<std::size_t>(bytes));
  }

  Support supports(const Problem& problem) const override {
    std::string reasons;
    for (const Implementation& implementation : cpu_implementations()) {
      if (implementation.kernel != problem.kernel) continue;
      const Support support = implementation.supports(problem, facts_);
      if (support) return support;
      reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", implementation.name, support.reason);
    }
    return Support::no(reasons.empty() ? fmt::format("cpu has no implementation of {}", problem.kernel) : reasons);
  }

  std::vector<std::string> implementations(const Problem& problem) const override {
    std::vector<std::string> names;
    for (const Implementation* implementation : candidates(problem)) names.emplace_back(implementation->name);
    return names;
  }

  std::unique_ptr<Plan> prepare(const Problem& problem, std::string_view forced) override {
    const std::vector<const Implementation*> possible = candidates(problem);
    if (possible.empty())
      throw Error(Status::not_supported, fmt::format("{} on cpu: {}", problem.id(), supports(problem).reason));
    const PrepareContext context{.facts = facts_};
    if (!forced.empty()) {
      for (const Implementation* implementation : possible)
        if (implementation->name == forced) return implementation->prepare(problem, context);
      throw Error(Status::not_supported, fmt::format("{} on cpu has no implementation '{}', only {}", problem.id(), forced,
                                                     fmt::join(implementations(problem), ", ")));
    }
    if (possible.size() == 1) return possible.front()->prepare(problem, context);
    return prepare_fastest(problem, possible, context);
  }

  TuningRecord& tuning() override { return tuning_; }

  void run(const Plan& plan, std::span<void* const> operands, void* workspace) override {
    plan.run({.operands = operands, .workspace = workspace});
  }
  void reserve_marks(std::size_t count) override { marks_.resize(std::max(count, marks_.size())); }
  void mark(std::size_t number) override { marks_[number] = Clock::now(); }
  void synchronize() override {}
  double seconds_between(std::size_t from, std::size_t to) const override {
    return std::chrono::duration<double>(marks_[to] - marks_[from]).count();
  }

  void chill() override {
    if (chill_buffer_.empty()) {
      const std::int64_t cache = std::max(facts_.last_level_cache_bytes(), kUnknownCacheBytes);
      chill_buffer_.assign(static_cast<std::size_t>(2 * cache) / sizeof(std::uint64_t), 1);
    }
    // Reads only: a chill that writes leaves dirty lines whose write-back lands in the next measurement.
    parallel_ranges(static_cast<std::int64_t>(chill_buffer_.size()), 8, [&](int, std::int64_t begin, std::int64_t end) {
      std::uint64_t sum = 0;
      for (std::int64_t i = begin; i < end; i += 8) sum += chill_buffer_[static_cast<std::size_t>(i)];
      volatile std::uint64_t sink = sum;
      (void)sink;
    });
  }

 private:
  std::vector<const Implementation*> candidates(const Problem& problem) const {
    std::vector<const Implementation*> found;
    for (const Implementation& implementation : cpu_implementations())
      if (implementation.kernel == problem.kernel && implementation.supports(problem, facts_)) found.push_back(&implementation);
    return found;
  }

  std::unique_ptr<Plan> prepare_fastest(const Problem& problem, const std::vector<const Implementation*>& possible,
                                        const PrepareContext& context) {
    if (const std::optional<TuningChoice> known = tuning_.find(problem.id()))
      for (const Implementation* implementation : possible)
        if (implementation->name == known->implementation) return implementation->prepare(problem, context);

    std::vector<std::unique_ptr<Plan>> plans;
    for (const Implementation* implementation : possible) plans.push_back(implementation->prepare(problem, context));
    const std::vector<double> times = time_candidates(problem, plans);
    const auto best = static_cast<std::size_t>(std::min_element(times.begin(), times.end()) - times.begin());
    tuning_.set(problem.id(), {.implementation = std::string(possible[best]->name),
                               .library = plans[best]->implementation(),
                               .time_s = times[best]});
    return std::move(plans[best]);
  }

  // Least time of each plan over alternated runs: what a choice needs, not a measurement to report.
  std::vector<double> time_candidates(const Problem& problem, const std::vector<std::unique_ptr<Plan>>& plans) {
    constexpr int kMostRounds = 8;
    constexpr double kSecondsForAll = 0.15;
    const OperandScratch scratch(*this, find_kernel(problem.kernel), problem, /*seed=*/1);
    std::vector<double> least(plans.size(), std::numeric_limits<double>::infinity());
    const Clock::time_point start = Clock::now();
    for (int round = 0; round < kMostRounds; ++round) {
      for (std::size_t i = 0; i < plans.size(); ++i) {
        const Clock::time_point begin = Clock::now();
        run(*plans[i], scratch.operands(), scratch.workspace());
        const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
        // The first round warms caches and library workspaces.
        if (round > 0) least[i] = std::min(least[i], seconds);
      }
      if (round > 0 && std::chrono::duration<double>(Clock::now() - start).count() > kSecondsForAll) break;
    }
    return least;
  }

  DeviceFacts facts_;
  std::unique_ptr<MemoryResource> memory_;
  TuningRecord tuning_;
  std::vector<Clock::time_point> marks_;
  std::vector<std::uint64_t> chill_buffer_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads) { return std::make_unique<CpuBackend>(threads); }

}  // namespace mixroof
