// mixroof check: every kernel against its double-precision reference, or the product against an oracle folder.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <set>

#include "harness/backend/backend.h"
#include "harness/cli/check_oracle.h"
#include "harness/cli/output.h"
#include "harness/cli/progress.h"
#include "harness/cli/subcommand.h"
#include "harness/execute/kernel_check.h"
#include "harness/result/document.h"
#include "kernels/registry.h"

namespace mixroof::cli {
namespace {

struct Options {
  std::string kernel, recipes = "all", device = "cpu", problem;
  std::uint64_t seed = 1;
  bool is_seeded = false;           // --seed was given
  std::optional<std::string> oracle;  // folder; nothing: kernels are checked
  std::vector<std::string> groups;  // of the oracle
  bool quick = false;
  OutputFormat format = OutputFormat::text;
};

/// What became of one kernel in one recipe.
struct Tally {
  std::string kernel, recipe;
  std::int64_t runs = 0, elements = 0, failed = 0;
  double worst_ratio = 0;
  std::set<std::string> implementations;
  std::vector<CheckRow> failures;
  std::int64_t unsupported = 0;  // problems that no implementation takes
  std::string unsupported_reason;

  bool is_used() const { return runs > 0 || unsupported > 0; }
  Status status() const { return failed > 0 ? Status::incorrect : runs > 0 ? Status::ok : Status::not_supported; }
};

/// "backward,rows=3,width=769", the form of repro lines; the variant may be left out where a kernel has only one.
Case parse_problem(const Kernel& kernel, std::string_view text) {
  Case wanted{.variant = kernel.cases().front().variant, .shape = {}};
  bool is_first = true;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos && is_first) {
      wanted.variant = part;
    } else {
      std::int64_t size = 0;
      const std::string_view digits = part.substr(std::min(equals, part.size() - 1) + 1);
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
      if (equals == std::string_view::npos || error != std::errc() || end != digits.data() + digits.size())
        throw UsageError(fmt::format(
            "--problem: '{}' is no dimension=number; write for example {},{}", part, wanted.variant,
            Problem{.kernel = {}, .variant = {}, .shape = kernel.cases().front().shape, .formats = {}, .constants = {}}
                .shape_text()));
      wanted.shape.emplace_back(part.substr(0, equals), size);
    }
    is_first = false;
  }
  return wanted;
}

/// Counts the problems that the backend refuses; check_recipe passes over them.
void count_unsupported(const Kernel& kernel, const Recipe& recipe, const Backend& backend, std::span<const Case> cases,
                       Tally& tally) {
  for (const Case& c : cases) {
    const std::optional<Problem> problem = kernel.problem(recipe, c);
    if (!problem || !backend.implementations(*problem).empty()) continue;
    ++tally.unsupported;
    tally.unsupported_reason = backend.supports(*problem).reason;
  }
}

Tally check_one(const Kernel& kernel, const Recipe& recipe, Backend& backend, std::uint64_t seed,
                std::span<const Case> cases) {
  Tally tally{.kernel = std::string(kernel.name()),
              .recipe = std::string(recipe.name),
              .implementations = {},
              .failures = {},
              .unsupported_reason = {}};
  count_unsupported(kernel, recipe, backend, cases, tally);
  tally.failed = check_recipe(kernel, recipe, backend, seed, cases, [&](const CheckRow& row) {
    ++tally.runs;
    tally.elements += row.result.elements;
    tally.worst_ratio = std::max(tally.worst_ratio, row.result.worst_ratio);
    tally.implementations.insert(row.implementation);
    if (!row.result.pass) tally.failures.push_back(row);
  });
  return tally;
}

std::string inputs_text(const CheckOptions& options) {
  return fmt::format("{}{}", options.inputs == CheckInputs::integers ? "integer inputs" : "random inputs",
                     options.misalign_elements > 0 ? ", misaligned" : "");
}

std::string tally_text(const Tally& tally, std::size_t kernel_width, std::size_t recipe_width) {
  constexpr std::size_t kMostFailures = 3;
  std::string text = fmt::format("{:<13} {:<{}} {:<{}} ", name(tally.status()), tally.kernel, kernel_width,
                                 tally.recipe, recipe_width);
  if (tally.runs > 0)
    text += fmt::format(" {:>4} cases {:>10} elements  worst ratio {:<8.3g} {}", tally.runs, tally.elements,
                        tally.worst_ratio, fmt::join(tally.implementations, ", "));
  if (tally.unsupported > 0) text += fmt::format("  {} not supported: {}", tally.unsupported, tally.unsupported_reason);
  text += "\n";
  for (std::size_t i = 0; i < std::min(kMostFailures, tally.failures.size()); ++i) {
    const CheckRow& row = tally.failures[i];
    text += fmt::format("check failed: {}\n  {}, {}: {}\n", row.repro, row.implementation, inputs_text(row.options),
                        row.result.detail);
  }
  if (tally.failures.size() > kMostFailures)
    text += fmt::format("  and {} more of this kernel in this recipe (--format json lists all)\n",
                        tally.failures.size() - kMostFailures);
  return text;
}

Json tally_json(const Tally& tally) {
  Json failures = Json::array();
  for (const CheckRow& row : tally.failures)
    failures.push_back({{"problem", row.problem.id()},
                        {"implementation", row.implementation},
                        {"inputs", inputs_text(row.options)},
                        {"detail", row.result.detail},
                        {"repro", row.repro}});
  Json json = {{"kernel", tally.kernel},
               {"recipe", tally.recipe},
               {"status", name(tally.status())},
               {"cases", tally.runs},
               {"elements", tally.elements},
               {"worst_ratio", tally.runs > 0 ? number_or_null(tally.worst_ratio) : Json()},
               {"implementations", tally.implementations},
               {"not_supported", tally.unsupported},
               {"failures", failures}};
  if (tally.unsupported > 0) json["not_supported_reason"] = tally.unsupported_reason;
  return json;
}

std::unique_ptr<Backend> open_device(const std::string& device) {
  BackendResult result = open_backend(device);
  if (!result.backend) throw Error(Status::no_device, fmt::format("{}: {}", device, result.support.reason));
  return std::move(result.backend);
}

class Check {
 public:
  explicit Check(const Options& options)
      : options_(options), recipes_(parse_recipes(options.recipes)), backend_(open_device(options.device)) {
    if (options.kernel.empty())
      kernels_.assign(all_kernels().begin(), all_kernels().end());
    else
      kernels_ = {&find_kernel(options.kernel)};
    if (!options.problem.empty() && options.kernel.empty())
      throw UsageError("--problem: shapes belong to one kernel; add --kernel NAME (mixroof list kernels)");
    for (const Kernel* kernel : kernels_) kernel_width_ = std::max(kernel_width_, kernel->name().size());
    for (const Recipe* recipe : recipes_) recipe_width_ = std::max(recipe_width_, recipe->name.size());
  }

  int run() {
    for (const Kernel* kernel : kernels_) {
      const std::vector<Case> cases =
          options_.problem.empty() ? kernel->cases() : std::vector<Case>{parse_problem(*kernel, options_.problem)};
      for (const Recipe* recipe : recipes_) check(*kernel, *recipe, cases);
    }
    return conclude();
  }

 private:
  void check(const Kernel& kernel, const Recipe& recipe, std::span<const Case> cases) {
    progress_.show({.what = fmt::format("{} in {}", kernel.name(), recipe.name),
                    .done = done_++,
                    .total = kernels_.size() * recipes_.size()});
    const Tally tally = check_one(kernel, recipe, *backend_, options_.seed, cases);
    if (!tally.is_used()) return;
    passed_ += tally.runs - tally.failed;
    failed_ += tally.failed;
    unsupported_ += tally.unsupported;
    rows_.push_back(tally_json(tally));
    if (options_.format != OutputFormat::text) return;
    progress_.clear();
    print(tally_text(tally, kernel_width_, recipe_width_));
  }

  int conclude() {
    progress_.clear();
    if (rows_.empty())
      throw UsageError(fmt::format("nothing was checked: {} is not used by {} (mixroof list recipes)",
                                   options_.kernel.empty() ? "any kernel" : "kernel " + options_.kernel,
                                   options_.recipes == "all" ? "any recipe" : "recipe " + options_.recipes));
    if (options_.format == OutputFormat::json)
      print(Json{{"device", options_.device},
                 {"seed", options_.seed},
                 {"results", rows_},
                 {"passed", passed_},
                 {"failed", failed_},
                 {"not_supported", unsupported_}}
                .dump(2) +
            "\n");
    else
      print(fmt::format("{} passed, {} failed{} (device {}, seed {})\n", passed_, failed_,
                        unsupported_ > 0 ? fmt::format(", {} not supported", unsupported_) : "", options_.device,
                        options_.seed));
    return failed_ > 0 ? kExitFinding : passed_ == 0 ? kExitImpossible : kExitOk;
  }

  const Options& options_;
  std::vector<const Recipe*> recipes_;
  std::unique_ptr<Backend> backend_;
  std::vector<const Kernel*> kernels_;
  std::size_t kernel_width_ = 0, recipe_width_ = 0, done_ = 0;
  std::int64_t passed_ = 0, failed_ = 0, unsupported_ = 0;
  Json rows_ = Json::array();
  Progress progress_;
};

int check_against_oracle(const Options& options) {
  if (!options.kernel.empty() || !options.problem.empty() || options.is_seeded)
    throw UsageError("--oracle: kernels, problems and inputs come from the folder; leave out --kernel, --problem and --seed");
  const bool all_recipes = options.recipes == "all";
  return print_oracle_check({.folder = *options.oracle,
                             .groups = options.groups,
                             .recipes = all_recipes ? std::vector<const Recipe*>{} : parse_recipes(options.recipes),
                             .device = options.device,
                             .exhaustive = !options.quick},
                            options.format);
}

int check(const Options& options) {
  if (options.oracle) return check_against_oracle(options);
  if (!options.groups.empty() || options.quick) throw UsageError("--groups and --quick belong to --oracle DIR");
  if (options.format == OutputFormat::markdown)
    throw UsageError("--format markdown: only the table of --oracle DIR has this form; take text or json");
  return Check(options).run();
}

Action declare(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  app.add_option("--kernel", options->kernel, "Only this kernel")->option_text("NAME [all]");
  app.add_option("--recipe,--recipes", options->recipes, "Recipes, comma-separated")->option_text("NAME,...|all [all]");
  app.add_option("--device", options->device, "Where it runs")->option_text("cpu|reference|cuda[:N] [cpu]");
  app.add_option("--problem", options->problem, "One shape instead of the kernel's own list")
      ->option_text("VARIANT,DIM=N,...");
  app.add_option("--seed", options->seed, "Seed of the inputs")->option_text("N [1]")->each([options](const std::string&) {
    options->is_seeded = true;
  });
  app.add_option("--oracle", options->oracle, "Instead: codecs, kernels, scaler, whole updates against this folder's truth")
      ->option_text("DIR");
  app.add_option("--groups", options->groups, "Of the oracle only these groups")
      ->delimiter(',')
      ->option_text("NAME,... [all]");
  app.add_flag("--quick", options->quick, "Leave out the encoders' checksums over all 2^32 inputs");
  add_format_option(app, options->format, {OutputFormat::text, OutputFormat::markdown, OutputFormat::json});
  return [options] { return check(*options); };
}

}  // namespace

Subcommand check_subcommand() {
  return {.name = "check",
          .summary = "Every kernel against its double-precision reference, or everything against an oracle folder",
          .examples =
              "mixroof check\nmixroof check --kernel norm --recipe bf16-master --problem forward,rows=3,width=769 "
              "--seed 17\nmixroof check --oracle oracle/ --quick",
          .declare = declare};
}

}  // namespace mixroof::cli
