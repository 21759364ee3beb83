// Every candidate for a ceiling of this machine as a benchmark; the fastest of an id is the ceiling in the document.
#include <map>

#include "benches/bench_main.h"
#include "harness/measure/ceilings.h"
#include "harness/measure/run_document.h"

namespace mixroof {
namespace {

std::string name_of(const CeilingCandidate& candidate) {
  return candidate.variant.empty() ? candidate.ceiling.id : candidate.ceiling.id + "/" + candidate.variant;
}

void add_benchmarks(Bench& bench) {
  const auto best = std::make_shared<std::vector<Ceiling>>();
  for (const CeilingCandidate& found : ceiling_candidates(bench.backend(), {.seed = bench.config().seed})) {
    const auto candidate = std::make_shared<CeilingCandidate>(found);
    const auto put = [candidate, best, &bench](const GbenchRecord& record) {
      if (record.status != Status::ok) return;
      candidate->ceiling.measured = rates(summarize(record.samples), candidate->work);
      merge_best(*best, std::span(&candidate->ceiling, 1));
      for (const Ceiling& ceiling : *best) bench.document().put_ceiling(ceiling_json(ceiling));
    };
    bench.add(
        name_of(*candidate), [candidate] { return candidate->open(candidate->ceiling); },
        {.counter = std::string(candidate->ceiling.unit()), .work = candidate->work}, put);
  }
}

}  // namespace
}  // namespace mixroof

int main(int argc, char** argv) {
  return mixroof::bench_main(
      argc, argv,
      {.name = "bench_ceilings",
       .summary = "Compute and bandwidth ceilings of this machine, all workers busy together.",
       .examples = "  bench_ceilings --benchmark_filter=bandwidth/DRAM --mixroof_out ceilings.json",
       .add_benchmarks = mixroof::add_benchmarks});
}
