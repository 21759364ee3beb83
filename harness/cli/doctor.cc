// mixroof doctor: what this machine can measure, and the remedy for each "no".
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/backend/cpu/processor_state.h"
#include "harness/backend/host.h"
#include "harness/cli/output.h"
#include "harness/cli/quantity.h"
#include "harness/cli/subcommand.h"
#include "harness/measure/device_document.h"
#include "harness/result/document.h"
#include "kernels/registry.h"

namespace mixroof::cli {
namespace {

/// A question with yes, no or a finer word, and for each "no" why and what to do.
struct Answer {
  std::string subject;
  std::string answer;
  std::string detail;
};

/// One section of the output.
struct Section {
  std::string key, title;
  std::array<std::string, 3> columns;
  std::vector<Answer> answers;
};

std::string cache_text(const Cache& cache) {
  return cache.shared_by_cores > 1
             ? fmt::format("L{} {} for {} cores", cache.level, bytes_text(cache.bytes), cache.shared_by_cores)
             : fmt::format("L{} {}", cache.level, bytes_text(cache.bytes));
}

Section describe_host(const HostFacts& host, const DeviceFacts& device) {
  std::vector<std::string> caches;
  for (const Cache& cache : host.caches) caches.push_back(cache_text(cache));
  const auto available = read_memory_available_bytes();
  return {
      "host",
      "This machine",
      {"what", "value", ""},
      {{"system", host.os.empty() ? "unknown" : host.os, host.kernel},
       {"processor", host.cpu.empty() ? "unknown" : host.cpu, ""},
       {"instruction paths", fmt::format("{}", fmt::join(device.paths, ", ")), "best first; the first is taken"},
       {"cores", fmt::format("{} used", host.cores_used),
        fmt::format("{} online, {} by affinity, quota {}", host.cores_online, host.cores_affinity,
                    host.cores_quota ? fmt::format("{:g}", *host.cores_quota) : "none")},
       {"caches", caches.empty() ? "unknown" : fmt::format("{}", fmt::join(caches, ", ")),
        caches.empty() ? "ceilings of caches are left out; /sys/devices/system/cpu/*/cache is missing" : ""},
       {"memory", bytes_text(host.memory_bytes),
        available ? bytes_text(*available) + " available after container limits" : "available memory cannot be read"},
       {"page size", bytes_text(sysconf(_SC_PAGESIZE)), ""}}};
}

Answer yes_or_no(std::string subject, bool yes, std::string when_yes, std::string remedy) {
  return {std::move(subject), yes ? "yes" : "no", yes ? std::move(when_yes) : std::move(remedy)};
}

Section describe_measures() {
  const ProcessMemory memory = read_process_memory();
  return {"measures",
          "What can be measured",
          {"what", "answer", "how, or the remedy"},
          {yes_or_no("time of kernels and updates", true, "monotonic clock", ""),
           yes_or_no("ceilings of compute and memory", true, "measured in each run (mixroof list ceilings)", ""),
           yes_or_no("planned and counted bytes", true, "by class, to the byte", ""),
           yes_or_no("observed memory", memory.pss_bytes.has_value(), "/proc/self/smaps_rollup",
                     "/proc/self/smaps_rollup cannot be read; Linux 4.14 or newer with a mounted /proc has it"),
           yes_or_no("peak of each recipe", reset_peak_rss(), "/proc/self/clear_refs",
                     "/proc/self/clear_refs cannot be written; the peak is then the process's since its start"),
           yes_or_no("processor rounds strictly", processor_state_is_strict(), "round to nearest, subnormals kept",
                     "flush-to-zero or another rounding is on; a loaded library switched it")}};
}

Section describe_backends(const DeviceFacts& cpu) {
  Section section{"backends", "Backends", {"backend", "answer", "device, or the remedy"}, {}};
  section.answers.push_back(yes_or_no("cpu", true, fmt::format("{}, {} threads", cpu.arch, cpu.units), ""));
  const BackendResult cuda = open_backend("cuda");
  section.answers.push_back(
      yes_or_no("cuda", cuda.backend != nullptr, cuda.backend ? cuda.backend->facts().name : "", cuda.support.reason));
  return section;
}

/// The first problem of a recipe that no implementation takes; empty when all can run.
std::string first_refusal(const Recipe& recipe, const Backend& backend) {
  for (const Kernel* kernel : all_kernels())
    for (const Case& c : kernel->cases())
      if (const std::optional<Problem> problem = kernel->problem(recipe, c))
        if (const Support support = backend.supports(*problem); !support)
          return fmt::format("{}: {}", kernel->name(), support.reason);
  return "";
}

/// Whether the recipe's matrix products run in a wider format than the one named.
bool is_emulated(const Recipe& recipe, Backend& backend) {
  const Kernel& matmul = find_kernel("matmul");
  for (const Case& c : matmul.cases())
    if (const std::optional<Problem> problem = matmul.problem(recipe, c))
      return backend.prepare(*problem, backend.implementations(*problem).front())->emulated();
  return false;
}

Answer describe_recipe(const Recipe& recipe, Backend& backend) {
  const std::string& device = backend.facts().backend;
  Answer answer{fmt::format("{} on {}", recipe.name, device), "native", ""};
  if (std::string refusal = first_refusal(recipe, backend); !refusal.empty())
    return {answer.subject, "not supported", std::move(refusal)};
  if (is_emulated(recipe, backend)) {
    answer.answer = "emulated";
    answer.detail =
        fmt::format("stored and rounded in {}, computed in fp32: evidence about numerics and memory, not about speed",
                    name(recipe.matmul_forward));
  }
  return answer;
}

Section describe_recipes(Backend& cpu) {
  Section section{"recipes", "Recipes", {"recipe", "answer", "why"}, {}};
  for (const Recipe& recipe : all_recipes()) section.answers.push_back(describe_recipe(recipe, cpu));
  return section;
}

/// Libraries whose matrix products compete with the project's own, each verified before it may.
Section describe_libraries(const DeviceFacts& facts) {
  struct Library {
    std::string_view implementation, title, when_absent;
  };
  static constexpr std::array kLibraries =
      std::to_array<Library>({{"openblas", "OpenBLAS", "not in this build"},
                              {"onednn", "oneDNN", "not in this build; configure with -DMIXROOF_ONEDNN=ON"}});
  Section section{"libraries", "Libraries", {"library", "answer", "version, or the remedy"}, {}};
  const Kernel& matmul = find_kernel("matmul");
  const std::optional<Problem> problem = matmul.problem(find_recipe("fp32"), matmul.cases().front());
  for (const Library& library : kLibraries) {
    Answer answer = yes_or_no(std::string(library.title), false, "", std::string(library.when_absent));
    for (const Implementation& implementation : cpu_implementations()) {
      if (implementation.name != library.implementation || !problem) continue;
      const Support support = implementation.supports(*problem, facts);
      answer = yes_or_no(
          answer.subject, support.yes,
          support ? implementation.prepare(*problem, {.facts = facts})->implementation() + ", agrees with the reference"
                  : "",
          support.reason);
    }
    section.answers.push_back(std::move(answer));
  }
  return section;
}

std::string flush_text(const ProductFacts& p) {
  if (p.flushes_subnormal_inputs) return "subnormal inputs count as zero";
  if (p.flushes_subnormal_results.value_or(false)) return "subnormal results become zero";
  return "subnormals are kept";
}

std::string rounding_text(Rounding rounding) {
  switch (rounding) {
    case Rounding::nearest_even: return "nearest, ties to even";
    case Rounding::nearest_away: return "nearest, ties away from zero";
    case Rounding::toward_zero: return "toward zero";
    case Rounding::other: break;
  }
  return "in another way";
}

/// Facts that the kernels of a run show when they are given numbers, not what a data sheet says.
Section describe_arithmetic(const ArithmeticFacts& facts) {
  Section section{"arithmetic", "Arithmetic, as found by feeding numbers to the kernels", {"what", "rounds", "and"}, {}};
  for (const ConversionFacts& c : facts.conversions)
    section.answers.push_back({fmt::format("fp32 to {} ({})", name(c.to), c.implementation), rounding_text(c.rounding),
                               c.flushes_subnormals ? "subnormals become zero" : "subnormals are kept"});
  for (const ProductFacts& p : facts.products)
    section.answers.push_back({fmt::format("{} product ({})", name(p.input), p.implementation),
                               rounding_text(p.accumulator_rounding),
                               fmt::format("sums keep {} mantissa bits; {}", p.accumulator_mantissa_bits, flush_text(p))});
  section.answers.push_back({fmt::format("fp32 addition ({})", facts.addition.implementation), "",
                             facts.addition.flushes_subnormals ? "subnormals become zero" : "subnormals are kept"});
  return section;
}

Section describe_environment(const HostFacts& host) {
  Section section{"environment", "Environment", {"setting", "value", "what it means"}, {}};
  for (const EnvironmentCheck& check : check_environment(host))
    section.answers.push_back({check.check, check.value, check.ok ? check.detail : "not ok: " + check.detail});
  return section;
}

Json host_json(const HostFacts& host) {
  Json caches = Json::array();
  for (const Cache& cache : host.caches)
    caches.push_back({{"level", cache.level}, {"bytes", cache.bytes}, {"shared_by_cores", cache.shared_by_cores}});
  return {{"os", host.os},
          {"kernel", host.kernel},
          {"cpu", host.cpu},
          {"cpu_paths", instruction_paths()},
          {"cores_online", host.cores_online},
          {"cores_affinity", host.cores_affinity},
          {"cores_quota", optional_or_null(host.cores_quota)},
          {"cores_used", host.cores_used},
          {"smt_active", optional_or_null(host.smt_active)},
          {"caches", caches},
          {"memory_bytes", host.memory_bytes},
          {"memory_available_bytes", optional_or_null(read_memory_available_bytes())},
          {"page_bytes", sysconf(_SC_PAGESIZE)}};
}

Json answers_json(const Section& section) {
  Json rows = Json::array();
  for (const Answer& answer : section.answers)
    rows.push_back({{"what", answer.subject}, {"answer", answer.answer}, {"detail", answer.detail}});
  return rows;
}

Json environment_json(const HostFacts& host) {
  Json rows = Json::array();
  for (const EnvironmentCheck& check : check_environment(host))
    rows.push_back({{"check", check.check}, {"ok", check.ok}, {"value", check.value}, {"detail", check.detail}});
  return rows;
}

void print_section(const Section& section) {
  Table table({{section.columns[0]}, {section.columns[1]}, {section.columns[2]}});
  for (const Answer& answer : section.answers) table.add_row({answer.subject, answer.answer, answer.detail});
  print(fmt::format("{}\n{}\n", section.title, std::string(section.title.size(), '-')));
  print(table, OutputFormat::text);
  print("\n");
}

int doctor(OutputFormat format) {
  const HostFacts host = read_host();
  const std::unique_ptr<Backend> cpu = open_backend("cpu").backend;
  const ArithmeticFacts arithmetic = probe_arithmetic(*cpu);
  const std::vector<Section> answers = {describe_measures(), describe_backends(cpu->facts()), describe_recipes(*cpu),
                                        describe_libraries(cpu->facts())};
  if (format == OutputFormat::json) {
    Json json = {{"host", host_json(host)}};
    for (const Section& section : answers) json[section.key] = answers_json(section);
    json["arithmetic"] = arithmetic_json(arithmetic);
    json["environment"] = environment_json(host);
    print(json.dump(2) + "\n");
    return kExitOk;
  }
  print_section(describe_host(host, cpu->facts()));
  for (const Section& section : answers) print_section(section);
  print_section(describe_arithmetic(arithmetic));
  print_section(describe_environment(host));
  return kExitOk;
}

Action declare(CLI::App& app) {
  const auto format = std::make_shared<OutputFormat>(OutputFormat::text);
  add_format_option(app, *format, {OutputFormat::text, OutputFormat::json});
  return [format] { return doctor(*format); };
}

}  // namespace

Subcommand doctor_subcommand() {
  return {.name = "doctor",
          .summary = "What this machine can measure, and the remedy for each \"no\"",
          .examples = "mixroof doctor\nmixroof doctor --format json",
          .declare = declare};
}

}  // namespace mixroof::cli
