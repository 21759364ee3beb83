// Every distinct kernel of the chosen recipes' updates alone, with cold and with hot caches.
#include "benches/bench_main.h"
#include "harness/measure/kernels_pass.h"
#include "harness/measure/run_document.h"
#include "kernels/registry.h"

namespace mixroof {
namespace {

// Chilling takes far longer than most kernels, and Google Benchmark counts only what they report.
constexpr std::int64_t kColdSamples = 30;

/// Products are rated by their FLOPs, everything else by the bytes it has to move.
GbenchOptions options_of(const Problem& problem, CacheState cache) {
  const Kernel& kernel = find_kernel(problem.kernel);
  const Cost cost = kernel.cost(problem);
  const bool is_product = kernel.category() == CostCategory::matmul || kernel.category() == CostCategory::attention;
  const std::int64_t work = is_product ? cost.total_useful_flops() : cost.bytes_read + cost.bytes_written;
  return {.counter = is_product ? "flop_per_s" : "byte_per_s",
          .work = static_cast<double>(work),
          .iterations = cache == CacheState::cold ? kColdSamples : 0};
}

void put_rows(Bench& bench, KernelRecord record, CacheState cache, const GbenchRecord& measured) {
  record.status = measured.status;
  record.reason = measured.reason;
  Summary& time = (cache == CacheState::cold ? record.cold : record.hot).summary;
  time = summarize(measured.samples);
  time.converged = time.relative_half_width() <= kKernelHalfWidth;
  for (Json& row : kernel_json(record, Roofline({}, {}), bench.config()))
    if (row["cache"] == name(cache)) bench.document().put_kernel(std::move(row));
}

void add_benchmarks(Bench& bench) {
  const auto evidence = std::make_shared<KernelEvidence>(bench.backend(), bench.config().seed);
  for (const KernelRecord& found : distinct_kernels(bench.config(), bench.backend().target()))
    for (const CacheState cache : {CacheState::cold, CacheState::hot}) {
      const auto record = std::make_shared<KernelRecord>(found);
      bench.add(
          record->problem.id() + "/" + std::string(name(cache)),
          [record, evidence, cache, &bench] {
            return open_kernel(*record, *evidence, bench.backend(), cache, bench.config().seed);
          },
          options_of(record->problem, cache),
          [record, cache, &bench](const GbenchRecord& measured) { put_rows(bench, *record, cache, measured); });
    }
}

}  // namespace
}  // namespace mixroof

int main(int argc, char** argv) {
  return mixroof::bench_main(
      argc, argv,
      {.name = "bench_kernels",
       .summary = "The kernels of a training update alone, each checked first, with cold and with hot caches.\n"
                  "Cold ones have 30 samples each, whatever --benchmark_min_time says.",
       .examples = "  bench_kernels --mixroof_recipes fp32,bf16-master --benchmark_filter=matmul\n"
                   "  bench_kernels --mixroof_model gpt2-124m --mixroof_seq 64 --benchmark_list_tests",
       .has_workload = true,
       .add_benchmarks = mixroof::add_benchmarks});
}
