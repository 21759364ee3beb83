// Ours against plain intrinsics loops, alternated on all workers: prints both rates and their ratio. A ratio below 0.95
// is a finding (exit 1). Usage: bench_peers [SECONDS]
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "benches/peers/peer_loops.h"
#include "harness/backend/backend.h"
#include "harness/measure/kernel_subject.h"
#include "harness/measure/workers_subject.h"
#include "kernels/fma/fma.h"
#include "kernels/stream/stream_cpu.h"

namespace mixroof {
namespace {

constexpr double kLeastRatio = 0.95;
constexpr std::int64_t kSteps = 1 << 17;

struct Pair {
  std::string name, unit;
  double our_work = 0, peer_work = 0;  // of one repetition
  std::unique_ptr<Subject> ours, peer;
};

Pair fma_pair(Backend& backend) {
  const bool is_wide = backend.facts().has_path("avx512");
  const std::int64_t workers = backend.facts().units;
  const Problem problem = fma_problem(192 * workers, kSteps);
  auto ours =
      std::make_unique<KernelSubject>(backend, fma_kernel(), problem, backend.prepare(problem), CacheState::hot, 1);
  auto peer = std::make_unique<WorkersSubject>([loop = is_wide ? peers::fma_avx512 : peers::fma_avx2](
                                                   int, std::int64_t repetitions) { loop(kSteps * repetitions); });
  const auto flops = static_cast<double>(workers * kSteps * (is_wide ? peers::kFmaFlopsAvx512 : peers::kFmaFlopsAvx2));
  return {is_wide ? "fp32 fma avx512" : "fp32 fma avx2",
          "GFLOP/s",
          static_cast<double>(fma_kernel().cost(problem).total_useful_flops()),
          flops,
          std::move(ours),
          std::move(peer)};
}

using Loop = void (*)(const float* a, const float* b, float* c, std::int64_t count);

struct StreamRow {
  const char* name;
  StreamOp op;
  bool nontemporal;
  int arrays;
  Loop peer;
};

constexpr StreamRow kStreams[] = {
    {"read", StreamOp::read, false, 1,
     [](const float* a, const float*, float*, std::int64_t n) { peers::read_avx2(a, n); }},
    {"write", StreamOp::write, false, 1,
     [](const float*, const float*, float* c, std::int64_t n) { peers::write_avx2(c, n); }},
    {"copy", StreamOp::copy, false, 2,
     [](const float* a, const float*, float* c, std::int64_t n) { peers::copy_avx2(a, c, n); }},
    {"triad", StreamOp::triad, false, 3, peers::triad_avx2},
    {"write nontemporal", StreamOp::write, true, 1,
     [](const float*, const float*, float* c, std::int64_t n) { peers::write_nontemporal_avx2(c, n); }},
    {"copy nontemporal", StreamOp::copy, true, 2,
     [](const float* a, const float*, float* c, std::int64_t n) { peers::copy_nontemporal_avx2(a, c, n); }},
    {"triad nontemporal", StreamOp::triad, true, 3, peers::triad_nontemporal_avx2},
};

/// `base` holds `stride` bytes for each worker, of which `bytes` are used.
Pair stream_pair(const StreamRow& row, const char* level, float* base, std::int64_t stride, std::int64_t bytes) {
  const std::int64_t count = bytes / row.arrays / 4 / 128 * 128;
  const std::int64_t passes = stride / bytes;
  const auto subject = [=](auto loop) {
    return std::make_unique<WorkersSubject>([=](int worker, std::int64_t repetitions) {
      float* a = base + worker * stride / 4;
      loop(a, a + count, a + (row.arrays - 1) * count, repetitions * passes);
    });
  };
  const auto ours = [=](const float* a, const float* b, float* c, std::int64_t times) {
    stream_slice(row.op, row.nontemporal, a, b, c, count, times);
  };
  const auto peer = [=](const float* a, const float* b, float* c, std::int64_t times) {
    for (std::int64_t i = 0; i < times; ++i) row.peer(a, b, c, count);
  };
  const double work = static_cast<double>(count * 4 * row.arrays * passes) * worker_count();
  return {fmt::format("{} {}", row.name, level), "GB/s", work, work, subject(ours), subject(peer)};
}

/// Prints a row; whether ours keeps up.
bool compare(const Pair& pair, double seconds) {
  SamplingOptions options;
  options.budget_s = seconds;
  options.min_sample_s = 1e-3;
  options.target_half_width = 0;
  Subject* const subjects[] = {pair.ours.get(), pair.peer.get()};
  const std::vector<SampleResult> results = sample_interleaved(subjects, options, /*block_samples=*/1, /*seed=*/1);
  const Summary ours = rates(results[0].summary, pair.our_work), peer = rates(results[1].summary, pair.peer_work);
  const double ratio = ours.median / peer.median;
  fmt::print("{:<28} ours {:8.2f}  plain loop {:8.2f} {:<8} ratio {:.3f}  best {:8.2f} {:8.2f}\n", pair.name,
             ours.median / 1e9, peer.median / 1e9, pair.unit, ratio, ours.max / 1e9, peer.max / 1e9);
  return ratio >= kLeastRatio;
}

int run(double seconds) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(0);
  if (!backend->facts().has_path("avx2")) {
    fmt::print("bench_peers needs AVX2, this processor has {}\n", backend->facts().paths.front());
    return kExitImpossible;
  }
  bool is_good = compare(fma_pair(*backend), seconds);
  const std::int64_t stride = std::int64_t{64} << 20;
  const std::int64_t total = stride * backend->facts().units;
  auto* base = static_cast<float*>(backend->memory().allocate(total, TensorClass::workspace));
  backend->fill_bytes(base, 0, total);
  for (const StreamRow& row : kStreams) {
    if (!row.nontemporal) is_good = compare(stream_pair(row, "16 KiB", base, stride, 16 << 10), seconds) && is_good;
    if (!row.nontemporal) is_good = compare(stream_pair(row, "256 KiB", base, stride, 256 << 10), seconds) && is_good;
    is_good = compare(stream_pair(row, "64 MiB", base, stride, stride), seconds) && is_good;
  }
  backend->memory().deallocate(base, total, TensorClass::workspace);
  return is_good ? kExitOk : kExitFinding;
}

}  // namespace
}  // namespace mixroof

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1.0;
  if (!(seconds > 0)) {
    fmt::print(stderr, "usage: bench_peers [SECONDS per pair, above 0]\n");
    return mixroof::kExitUsage;
  }
  return mixroof::run(seconds);
}
