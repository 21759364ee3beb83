#include "harness/measure/kernels_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "harness/execute/kernel_check.h"
#include "kernels/registry.h"

namespace mixroof {
namespace {

constexpr std::size_t kCheckedCasesPerVariant = 3;
constexpr std::int64_t kMostSamples = 60;
constexpr std::int64_t kBlockSamples = 4;

/// A few small cases of each variant: evidence before any rate. `mixroof check` tries them all.
std::vector<Case> short_cases(const Kernel& kernel) {
  std::map<std::string, std::size_t> taken;
  std::vector<Case> cases;
  for (const Case& c : kernel.cases())
    if (taken[c.variant]++ < kCheckedCasesPerVariant) cases.push_back(c);
  return cases;
}

/// Problems that differ only in formats are compared with each other and therefore sampled together.
std::string family(const Problem& problem) { return problem.kernel + "/" + problem.variant + "/" + problem.shape_text(); }

std::vector<std::vector<KernelRecord*>> families(std::vector<KernelRecord>& records) {
  std::vector<std::vector<KernelRecord*>> groups;
  std::map<std::string, std::size_t> known;
  for (KernelRecord& record : records) {
    const auto [found, is_new] = known.try_emplace(family(record.problem), groups.size());
    if (is_new) groups.emplace_back();
    groups[found->second].push_back(&record);
  }
  return groups;
}

/// Cold and hot subjects of a record, or its status.
void open_subjects(const RunConfig& config, Backend& backend, KernelEvidence& evidence, KernelRecord& record,
                   std::vector<std::unique_ptr<KernelSubject>>& subjects, std::vector<SampleResult*>& results) {
  try {
    for (const CacheState cache : {CacheState::cold, CacheState::hot}) {
      subjects.push_back(open_kernel(record, evidence, backend, cache, config.seed));
      results.push_back(cache == CacheState::cold ? &record.cold : &record.hot);
    }
  } catch (const Error& error) {
    record.status = error.status();
    record.reason = error.what();
  }
}

}  // namespace

std::vector<KernelRecord> distinct_kernels(const RunConfig& config, const Target& target) {
  std::vector<KernelRecord> records;
  std::map<std::string, std::size_t> known;
  for (const Recipe* recipe : config.recipes)
    for (const Slice& s : slice(config.lower_for(*recipe, target))) {
      const auto [found, is_new] = known.try_emplace(s.problem.id(), records.size());
      if (is_new) {
        records.emplace_back().problem = s.problem;
        records.back().phase = s.phase;
      }
      records[found->second].uses.push_back({recipe, s.count_per_update, s.recomputed_per_update});
    }
  return records;
}

const std::string& KernelEvidence::fault(const std::string& kernel_name, const Recipe& recipe) {
  const auto [known, is_new] = faults_.try_emplace({kernel_name, std::string(recipe.name)});
  if (!is_new) return known->second;
  const Kernel& kernel = find_kernel(kernel_name);
  check_recipe(kernel, recipe, backend_, seed_, short_cases(kernel), [&](const CheckRow& row) {
    if (!row.result.pass && known->second.empty()) known->second = row.result.detail + " (" + row.repro + ")";
  });
  return known->second;
}

std::string KernelEvidence::fault(const KernelRecord& record) {
  for (const KernelUse& use : record.uses)
    if (const std::string& found = fault(record.problem.kernel, *use.recipe); !found.empty()) return found;
  return {};
}

std::unique_ptr<KernelSubject> open_kernel(KernelRecord& record, KernelEvidence& evidence, Backend& backend,
                                           CacheState cache, std::uint64_t seed) {
  if (const std::string fault = evidence.fault(record); !fault.empty()) throw Error(Status::incorrect, fault);
  auto subject = std::make_unique<KernelSubject>(backend, find_kernel(record.problem.kernel), record.problem,
                                                 backend.prepare(record.problem), cache, seed);
  record.implementation = subject->plan().implementation();
  record.emulated = subject->plan().emulated();
  return subject;
}

void time_kernels(const RunConfig& config, Backend& backend, double budget_s, const RunEvents& events,
                  std::vector<KernelRecord>& records, const std::function<void(const KernelRecord&)>& on_record) {
  KernelEvidence evidence(backend, config.seed);
  const Clock& clock = steady_clock();
  const double end_s = clock.now_s() + budget_s;
  std::size_t done = 0;
  for (const std::vector<KernelRecord*>& group : families(records)) {
    if (events.stopped()) return;
    if (events.show) events.show(family(group.front()->problem), done, records.size());
    std::vector<std::unique_ptr<KernelSubject>> subjects;
    std::vector<SampleResult*> results;
    for (KernelRecord* record : group) open_subjects(config, backend, evidence, *record, subjects, results);
    std::vector<Subject*> to_sample;
    for (const auto& subject : subjects) to_sample.push_back(subject.get());
    const double left_s = std::max(end_s - clock.now_s(), 0.0);
    const SamplingOptions options = {
        .budget_s = left_s * static_cast<double>(group.size()) / static_cast<double>(records.size() - done),
        .target_half_width = kKernelHalfWidth,
        .max_samples = kMostSamples};
    const std::vector<SampleResult> sampled = sample_interleaved(to_sample, options, kBlockSamples, config.seed, {.stop = events.stop});
    for (std::size_t i = 0; i < sampled.size(); ++i) *results[i] = sampled[i];
    for (const KernelRecord* record : group) on_record(*record);
    done += group.size();
  }
}

}  // namespace mixroof
