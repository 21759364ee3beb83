// mixroof plan: what an update needs on a machine, from its program alone. No device is touched.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/backend/host.h"
#include "harness/cli/output.h"
#include "harness/cli/quantity.h"
#include "harness/cli/subcommand.h"
#include "harness/numeric/checked.h"
#include "harness/program/bytes.h"
#include "harness/program/lower.h"
#include "harness/result/document.h"
#include "harness/result/hardware.h"
#include "kernels/registry.h"

namespace mixroof::cli {
namespace {

struct Options {
  std::string model, recipes = "all", memory, checkpointing = "none";
  std::optional<std::int64_t> seq;
  std::int64_t micro_batch = 1, micro_batches = 1;
  bool dump = false;
  OutputFormat format = OutputFormat::text;
};

/// Memory that a plan has to fit, and how people call it.
struct MemoryLimit {
  std::int64_t bytes = 0;
  std::string what;
};

MemoryLimit memory_limit(const std::string& option) {
  if (option.empty()) return {read_memory_available_bytes().value_or(read_host().memory_bytes), "free on this machine"};
  if (std::isdigit(static_cast<unsigned char>(option.front()))) return {parse_bytes(option, "--memory"), "given"};
  const Hardware& hardware = find_hardware(option);
  if (!hardware.memory_bytes)
    throw UsageError(
        fmt::format("--memory: the catalogue does not know the memory of {}; give bytes, for example 24GiB", option));
  return {*hardware.memory_bytes, hardware.name};
}

struct Flops {
  std::array<std::int64_t, kFormatCount> by_format = {};
  std::int64_t total = 0;
};

/// Useful FLOPs of one update, all its micro-batches included; with and without what is computed a second time.
struct UpdateFlops {
  Flops model, recomputed;

  explicit UpdateFlops(const Program& program) {
    for (const Slice& s : slice(program)) {
      const Cost cost = find_kernel(s.problem.kernel).cost(s.problem);
      add(model, cost, s.count_per_update - s.recomputed_per_update);
      add(recomputed, cost, s.recomputed_per_update);
    }
  }

 private:
  static void add(Flops& flops, const Cost& cost, std::int64_t times) {
    for (std::size_t f = 0; f < flops.by_format.size(); ++f) {
      const std::int64_t of_format = checked_product({cost.useful_flops[f], times});
      flops.by_format[f] = checked_sum(flops.by_format[f], of_format);
      flops.total = checked_sum(flops.total, of_format);
    }
  }
};

struct RecipePlan {
  const Recipe* recipe = nullptr;
  BytePlan bytes;
  UpdateFlops flops;
  std::int64_t largest_micro_batch = 0;
};

std::int64_t live_peak_or_most(const Model& model, const Recipe& recipe, const Batch& batch, const Target& target,
                               const LowerOptions& lowering) {
  try {
    return live_peak_bytes(lower(model, recipe, batch, target, lowering));
  } catch (const Error& error) {
    if (error.status() != Status::out_of_memory) throw;
    return std::numeric_limits<std::int64_t>::max();
  }
}

RecipePlan plan_recipe(const Model& model, const Recipe& recipe, const Batch& batch, const Target& target,
                       const LowerOptions& lowering, const MemoryLimit& memory) {
  const Program program = lower(model, recipe, batch, target, lowering);
  RecipePlan plan{.recipe = &recipe, .bytes = plan_bytes(program), .flops = UpdateFlops(program)};
  plan.largest_micro_batch = largest_micro_batch(memory.bytes, [&](std::int64_t micro_batch) {
    Batch other = batch;
    other.micro_batch = micro_batch;
    return live_peak_or_most(model, recipe, other, target, lowering);
  });
  return plan;
}

double per_parameter(const RecipePlan& plan, const Model& model) {
  return static_cast<double>(plan.bytes.persistent_total) / static_cast<double>(model.parameters());
}

Json plan_json(const RecipePlan& plan, const Model& model) {
  Json persistent = Json::object(), flops = Json::object();
  for (int c = 0; c < kTensorClassCount; ++c)
    if (const std::int64_t bytes = plan.bytes.persistent[static_cast<std::size_t>(c)])
      persistent[std::string(name(static_cast<TensorClass>(c)))] = bytes;
  persistent["total"] = plan.bytes.persistent_total;
  persistent["per_param"] = per_parameter(plan, model);
  for (const Format format : all_formats())
    if (const std::int64_t count = plan.flops.model.by_format[static_cast<std::size_t>(format)])
      flops[std::string(name(format))] = count;
  return {{"recipe", plan.recipe->name},
          {"diagnostic", plan.recipe->diagnostic},
          {"persistent_bytes", persistent},
          {"activation_peak_bytes", plan.bytes.activation_peak},
          {"workspace_bytes", plan.bytes.workspace_peak},
          {"live_planned_bytes", plan.bytes.live_peak},
          {"arena_planned_bytes", plan.bytes.arena_bytes},
          {"peak_phase", name(plan.bytes.peak_phase)},
          {"peak_op", plan.bytes.peak_op},
          {"largest_micro_batch", plan.largest_micro_batch},
          {"flops_per_update", flops},
          {"flops_per_update_total", plan.flops.model.total},
          {"recomputed_flops_per_update_total", plan.flops.recomputed.total}};
}

Table totals_table(const std::vector<RecipePlan>& plans, const Model& model) {
  Table table({{"recipe"},
               {"persistent", Align::right},
               {"per parameter", Align::right, 1},
               {"activations", Align::right, 2},
               {"workspace", Align::right, 5},
               {"live peak", Align::right},
               {"arena", Align::right, 3},
               {"largest micro-batch", Align::right, 1},
               {"FLOPs per update", Align::right, 4},
               {"recomputed", Align::right, 6}});
  for (const RecipePlan& plan : plans)
    table.add_row({std::string(plan.recipe->name), bytes_text(plan.bytes.persistent_total),
                   fmt::format("{:.6g} B", per_parameter(plan, model)), bytes_text(plan.bytes.activation_peak),
                   bytes_text(plan.bytes.workspace_peak), bytes_text(plan.bytes.live_peak),
                   bytes_text(plan.bytes.arena_bytes),
                   plan.largest_micro_batch > 0 ? fmt::format("{}", plan.largest_micro_batch) : "none",
                   si_text(static_cast<double>(plan.flops.model.total), "FLOP"),
                   plan.flops.recomputed.total > 0 ? si_text(static_cast<double>(plan.flops.recomputed.total), "FLOP") : "-"});
  return table;
}

Table classes_table(const std::vector<RecipePlan>& plans) {
  std::vector<Column> columns = {{"recipe"}};
  std::vector<std::size_t> classes;
  for (std::size_t c = 0; c < kTensorClassCount; ++c) {
    const bool is_used =
        std::any_of(plans.begin(), plans.end(), [&](const RecipePlan& p) { return p.bytes.persistent[c] > 0; });
    if (!is_used) continue;
    classes.push_back(c);
    columns.push_back({std::string(name(static_cast<TensorClass>(c))), Align::right});
  }
  Table table(columns);
  for (const RecipePlan& plan : plans) {
    std::vector<std::string> cells = {std::string(plan.recipe->name)};
    for (const std::size_t c : classes)
      cells.push_back(plan.bytes.persistent[c] > 0 ? bytes_text(plan.bytes.persistent[c]) : "-");
    table.add_row(cells);
  }
  return table;
}

std::string heading(const Model& model, const Batch& batch, const Target& target, Checkpointing checkpointing,
                    const MemoryLimit& memory) {
  return fmt::format(
      "{}: {} parameters, {} micro-batch(es) of {} sequences of {} tokens, {} with {} threads{}\n"
      "largest micro-batch: what fits {} ({})\n\n",
      model.name, model.parameters(), batch.micro_batches, batch.micro_batch, batch.seq, target.backend, target.threads,
      checkpointing == Checkpointing::none ? "" : ", activations of a layer computed again in its backward",
      bytes_text(memory.bytes), memory.what);
}

void print_plans(const std::vector<RecipePlan>& plans, const Model& model, const Batch& batch, const Target& target,
                 Checkpointing checkpointing, const MemoryLimit& memory, OutputFormat format) {
  if (format == OutputFormat::json) {
    Json rows = Json::array();
    for (const RecipePlan& plan : plans) rows.push_back(plan_json(plan, model));
    print(Json{{"model", model.name},
               {"parameters", model.parameters()},
               {"micro_batch", batch.micro_batch},
               {"micro_batches", batch.micro_batches},
               {"sequence", batch.seq},
               {"tokens_per_update", batch.tokens_per_update()},
               {"checkpointing", name(checkpointing)},
               {"target", {{"backend", target.backend}, {"threads", target.threads}}},
               {"memory_bytes", memory.bytes},
               {"recipes", rows}}
              .dump(2) +
          "\n");
    return;
  }
  print(heading(model, batch, target, checkpointing, memory));
  print(totals_table(plans, model), format);
  print("\npersistent bytes by class\n\n");
  print(classes_table(plans), format);
}

int plan(const Options& options) {
  const Model model = find_model(options.model);
  const std::vector<const Recipe*> recipes = parse_recipes(options.recipes);
  constexpr std::int64_t kUsualSequence = 1024;
  const Batch batch{.micro_batch = options.micro_batch,
                    .seq = options.seq.value_or(std::min(kUsualSequence, model.context)),
                    .micro_batches = options.micro_batches};
  const Target target{.backend = "cpu", .threads = read_host().cores_used};
  LowerOptions lowering;
  lowering.checkpointing = find_checkpointing(options.checkpointing);
  if (options.dump) {
    if (recipes.size() != 1)
      throw UsageError(fmt::format("--dump prints one program, --recipes names {}; give one of them", recipes.size()));
    print(lower(model, *recipes.front(), batch, target, lowering).dump());
    return kExitOk;
  }
  const MemoryLimit memory = memory_limit(options.memory);
  std::vector<RecipePlan> plans;
  for (const Recipe* recipe : recipes) plans.push_back(plan_recipe(model, *recipe, batch, target, lowering, memory));
  print_plans(plans, model, batch, target, lowering.checkpointing, memory, options.format);
  return kExitOk;
}

Action declare(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  app.add_option("--model", options->model, "A named model (mixroof list models) or a Hugging Face config.json")
      ->required()
      ->option_text("NAME|config.json");
  app.add_option("--recipes,--recipe", options->recipes, "Recipes, comma-separated")->option_text("NAME,...|all [all]");
  app.add_option("--seq", options->seq, "Tokens of a sequence")->option_text("N [least of 1024 and the context]");
  app.add_option("--micro-batch", options->micro_batch, "Sequences of a micro-batch")->option_text("N [1]");
  app.add_option("--micro-batches", options->micro_batches, "Micro-batches of an update")->option_text("N [1]");
  app.add_option("--checkpointing", options->checkpointing, "Activations to compute again in the backward phase")
      ->option_text("none|layer [none]");
  app.add_option("--memory", options->memory, "Memory to fit: bytes or a device of mixroof list hardware")
      ->option_text("24GiB|NAME [free here]");
  app.add_flag("--dump", options->dump, "Print the program of one recipe as text");
  add_format_option(app, options->format, {OutputFormat::text, OutputFormat::markdown, OutputFormat::json});
  return [options] { return plan(*options); };
}

}  // namespace

Subcommand plan_subcommand() {
  return {.name = "plan",
          .summary = "What an update needs in each recipe: bytes by class, peaks, the micro-batch that fits, FLOPs",
          .examples =
              "mixroof plan --model llama-3-8b --memory h200_sxm --checkpointing layer\n"
              "mixroof plan --model config.json --recipes bf16-master --seq 512 --micro-batch 4 --dump",
          .declare = declare};
}

}  // namespace mixroof::cli
