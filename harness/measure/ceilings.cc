#include "harness/measure/ceilings.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "harness/measure/bf16_dot.h"
#include "harness/measure/kernel_subject.h"
#include "harness/measure/sampler.h"
#include "harness/measure/workers_subject.h"
#include "kernels/fma/fma.h"
#include "kernels/matmul/matmul.h"
#include "kernels/stream/stream.h"
#include "kernels/stream/stream_cpu.h"

namespace mixroof {
namespace {

constexpr double kSmallBudget_s = 4.0;
constexpr double kHeatShare = 0.05;
constexpr double kMostHeat_s = 0.5;
constexpr std::int64_t kUnknownCacheBytes = 32 << 20;
constexpr std::int64_t kLeastDramBytes = 64 << 20;
constexpr std::int64_t kLineBytes = 64;
constexpr std::int64_t kLeastStreamBytes = 64 << 20;  // of one repetition: a few 100 µs even from the nearest cache

/// Memory that CPU streams walk over: one region for each worker, touched by that worker first.
class StreamRegions {
 public:
  StreamRegions(Backend& backend, std::int64_t bytes)
      : backend_(backend), workers_(backend.facts().units), region_bytes_(bytes / workers_ / kLineBytes * kLineBytes) {
    base_ = static_cast<unsigned char*>(backend.memory().allocate(total(), TensorClass::workspace));
    WorkersSubject([this](int worker, std::int64_t) {
      stream_slice(StreamOp::write, false, nullptr, nullptr, region(worker), region_bytes_ / 4);
    }).prepare_sample();
  }
  ~StreamRegions() { backend_.memory().deallocate(base_, total(), TensorClass::workspace); }
  StreamRegions(const StreamRegions&) = delete;
  StreamRegions& operator=(const StreamRegions&) = delete;

  float* region(int worker) const { return reinterpret_cast<float*>(base_ + worker * region_bytes_); }
  int workers() const { return workers_; }

 private:
  std::int64_t total() const { return region_bytes_ * workers_; }

  Backend& backend_;
  int workers_;
  std::int64_t region_bytes_;
  unsigned char* base_ = nullptr;
};

/// Regions that live as long as a subject walks over them, shared by all subjects that live together.
class SharedRegions {
 public:
  SharedRegions(Backend& backend, std::int64_t bytes) : backend_(backend), bytes_(bytes) {}

  std::shared_ptr<StreamRegions> get() {
    std::shared_ptr<StreamRegions> regions = regions_.lock();
    if (!regions) regions_ = regions = std::make_shared<StreamRegions>(backend_, bytes_);
    return regions;
  }

 private:
  Backend& backend_;
  std::int64_t bytes_;
  std::weak_ptr<StreamRegions> regions_;
};

class CandidateList {
 public:
  CandidateList(Backend& backend, const CeilingOptions& options)
      : backend_(backend),
        options_(options),
        levels_(memory_levels(backend.facts())),
        dram_bytes_(std::min(working_set_bytes(levels_, levels_.size()), backend.memory_free_bytes() / 4)) {}

  std::vector<CeilingCandidate> make() {
    add_compute();
    if (is_cpu())
      add_worker_streams();
    else
      add_device_streams();
    return std::move(candidates_);
  }

 private:
  bool is_cpu() const { return backend_.facts().backend == "cpu"; }

  void add_kernel(Ceiling ceiling, std::string variant, const Kernel& kernel, const Problem& problem) {
    if (!backend_.supports(problem)) return;
    const Cost cost = kernel.cost(problem);
    ceiling.shape = problem.shape_text();
    ceiling.working_set_bytes = cost.bytes_read + cost.bytes_written;
    const auto work = static_cast<double>(ceiling.kind == CeilingKind::compute ? cost.total_useful_flops()
                                                                               : ceiling.working_set_bytes);
    auto open = [&backend = backend_, &kernel, problem, seed = options_.seed](Ceiling& opened) {
      auto subject =
          std::make_unique<KernelSubject>(backend, kernel, problem, backend.prepare(problem), CacheState::hot, seed);
      opened.implementation = subject->plan().implementation();
      return subject;
    };
    candidates_.push_back({std::move(ceiling), std::move(variant), work, std::move(open)});
  }

  void add_compute() {
    // One block of registers for each worker, long enough that starting the workers does not show.
    add_kernel({.id = "compute/fp32", .path = "fp32"}, "", fma_kernel(),
               fma_problem(backend_.facts().units * 192, 1 << 17));
    if (is_cpu() && backend_.facts().has_path("avx512_bf16")) add_bf16_dot();
    for (const Format format : {Format::fp32, Format::tf32, Format::fp16, Format::bf16})
      if (backend_.facts().has_arithmetic(format)) add_matmul(format);
  }

  void add_bf16_dot() {
    constexpr std::int64_t kIterations = 1 << 14;
    Ceiling ceiling{.id = "compute/bf16", .path = "bf16", .shape = "registers", .implementation = "mixroof vdpbf16ps"};
    candidates_.push_back({std::move(ceiling), "",
                           static_cast<double>(kIterations * kBf16DotFlops * backend_.facts().units), [](Ceiling&) {
                             return std::make_unique<WorkersSubject>(
                                 [](int, std::int64_t repetitions) { run_bf16_dot(kIterations * repetitions); });
                           }});
  }

  void add_matmul(Format format) {
    const std::string path = fmt::format("{}_matmul", name(format));
    const std::vector<std::int64_t> sizes = options_.budget_s < kSmallBudget_s
                                                ? std::vector<std::int64_t>{512}
                                                : std::vector<std::int64_t>{512, 1024, 1536};
    for (const std::int64_t size : sizes) {
      const Problem problem = matmul_problem(MatmulVariant::forward, {size, size, size}, format, format, format);
      add_kernel({.id = "compute/" + path, .path = path}, problem.shape_text(), matmul_kernel(), problem);
    }
  }

  void add_worker_streams() {
    for (std::size_t level = 0; level < levels_.size(); ++level)
      if (const std::int64_t bytes = std::min(working_set_bytes(levels_, level), dram_bytes_); bytes > 0)
        add_worker_streams(levels_[level].name, bytes, level + 1 == levels_.size());
    add_worker_streams(std::string(kDramLevel), dram_bytes_, true);
  }

  /// Stores past the cache are tried only where they can win.
  void add_worker_streams(const std::string& level, std::int64_t bytes, bool also_nontemporal) {
    for (const char* mix : {"read", "write", "copy", "triad"}) {
      add_worker_stream(level, mix, bytes, false);
      if (also_nontemporal && std::string_view(mix) != "read") add_worker_stream(level, mix, bytes, true);
    }
  }

  void add_worker_stream(const std::string& level, const char* mix, std::int64_t bytes, bool nontemporal) {
    const StreamOp op = find_stream_op(mix);
    const std::int64_t workers = backend_.facts().units;
    const std::int64_t arrays = op == StreamOp::triad ? 3 : op == StreamOp::copy ? 2 : 1;
    const std::int64_t count = bytes / workers / arrays / kLineBytes * kLineBytes / 4;
    const std::int64_t all_bytes = count * 4 * arrays * workers;
    Ceiling ceiling{.id = fmt::format("bandwidth/{}/{}", level, mix),
                    .kind = CeilingKind::bandwidth,
                    .path = "memory",
                    .level = level,
                    .mix = mix,
                    .shape = stream_problem(mix, count * workers, nontemporal).shape_text(),
                    .working_set_bytes = all_bytes,
                    .implementation = fmt::format("mixroof {}{}", stream_path(), nontemporal ? " nontemporal" : "")};
    // A repetition is long enough that starting and joining the workers does not show.
    const std::int64_t passes = std::max<std::int64_t>(1, kLeastStreamBytes / all_bytes);
    auto open = [=, shared = regions_, warms_up = level != kDramLevel](Ceiling&) {
      auto body = [=, regions = shared->get()](int worker, std::int64_t repetitions) {
        float* a = regions->region(worker);
        float* b = arrays == 3 ? a + count : nullptr;
        float* c = a + (arrays - 1) * count;
        stream_slice(op, nontemporal, a, b, c, count, repetitions * passes);
      };
      return std::make_unique<WorkersSubject>(std::move(body), warms_up);
    };
    candidates_.push_back({std::move(ceiling), nontemporal ? "nontemporal" : "",
                           static_cast<double>(all_bytes * passes), std::move(open)});
  }

  void add_device_streams() {
    for (const char* mix : {"read", "write", "copy", "triad"})
      add_kernel({.id = fmt::format("bandwidth/{}/{}", kDramLevel, mix),
                  .kind = CeilingKind::bandwidth,
                  .path = "memory",
                  .level = std::string(kDramLevel),
                  .mix = mix},
                 "", stream_kernel(), stream_problem(mix, dram_bytes_ / 12, false));
  }

  Backend& backend_;
  const CeilingOptions& options_;
  std::vector<MemoryLevel> levels_;
  std::int64_t dram_bytes_;
  std::shared_ptr<SharedRegions> regions_ = std::make_shared<SharedRegions>(backend_, dram_bytes_);
  std::vector<CeilingCandidate> candidates_;
};

/// A candidate that is set up.
struct Opened {
  CeilingCandidate* candidate;
  std::unique_ptr<Subject> subject;
};

/// Without the candidates that do not fit memory.
std::vector<Opened> open_all(std::vector<CeilingCandidate>& candidates) {
  std::vector<Opened> opened;
  for (CeilingCandidate& candidate : candidates) {
    try {
      opened.push_back({&candidate, candidate.open(candidate.ceiling)});
    } catch (const Error& error) {
      if (error.status() != Status::out_of_memory) throw;
    }
  }
  return opened;
}

/// Brings clocks and temperature of all workers to where they stay under load.
void heat(Subject& subject, double budget_s) {
  const double end_s = steady_clock().now_s() + std::min(kMostHeat_s, kHeatShare * budget_s);
  while (steady_clock().now_s() < end_s) subject.run(1);
}

}  // namespace

std::vector<MemoryLevel> memory_levels(const DeviceFacts& facts) {
  std::vector<MemoryLevel> levels;
  for (const Cache& cache : facts.caches) {
    const int sharers = std::max(1, cache.shared_by_cores);
    const std::int64_t instances = (facts.units + sharers - 1) / sharers;
    levels.push_back({fmt::format("L{}", cache.level), cache.bytes * instances});
  }
  std::sort(levels.begin(), levels.end(), [](const MemoryLevel& a, const MemoryLevel& b) { return a.name < b.name; });
  return levels;
}

std::int64_t working_set_bytes(const std::vector<MemoryLevel>& levels, std::size_t level) {
  const std::int64_t nearer = level == 0 || levels.empty() ? 0 : levels[level - 1].capacity_bytes;
  if (level == levels.size()) return std::max(kLeastDramBytes, 4 * (levels.empty() ? kUnknownCacheBytes : nearer));
  const std::int64_t capacity = levels[level].capacity_bytes;
  const bool is_outermost = level > 0 && level + 1 == levels.size();
  const std::int64_t bytes = std::max(capacity / (is_outermost ? 4 : 2), 2 * nearer);
  return bytes <= capacity * 3 / 4 ? bytes : 0;
}

std::vector<CeilingCandidate> ceiling_candidates(Backend& backend, const CeilingOptions& options) {
  if (backend.facts().backend == "reference") return {};
  return CandidateList(backend, options).make();
}

std::vector<Ceiling> measure_ceilings(Backend& backend, const CeilingOptions& options) {
  const double start_s = steady_clock().now_s();
  std::vector<CeilingCandidate> candidates = ceiling_candidates(backend, options);
  const std::vector<Opened> opened = open_all(candidates);
  if (opened.empty()) return {};
  heat(*opened.front().subject, options.budget_s);
  const double elapsed_s = steady_clock().now_s() - start_s;
  SamplingOptions sampling;
  sampling.budget_s = std::max(0.1 * options.budget_s, options.budget_s - elapsed_s);
  sampling.max_samples = 64;
  sampling.min_sample_s = 1e-3;
  std::vector<Subject*> subjects;
  for (const Opened& one : opened) subjects.push_back(one.subject.get());
  const std::vector<SampleResult> results =
      sample_interleaved(subjects, sampling, /*block_samples=*/4, options.seed, {.stop = options.stop});
  std::vector<Ceiling> best;
  for (std::size_t i = 0; i < opened.size(); ++i) {
    if (results[i].summary.empty()) continue;
    Ceiling& ceiling = opened[i].candidate->ceiling;
    ceiling.measured = rates(results[i].summary, opened[i].candidate->work);
    merge_best(best, std::span(&ceiling, 1));
  }
  return best;
}

}  // namespace mixroof
