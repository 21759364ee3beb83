// mixroof list: what this build knows by name. To add a list: one function and its line in kLists.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <set>

#include "harness/backend/backend.h"
#include "harness/cli/output.h"
#include "harness/cli/quantity.h"
#include "harness/cli/subcommand.h"
#include "harness/measure/ceilings.h"
#include "harness/program/model.h"
#include "harness/result/document.h"
#include "harness/result/hardware.h"
#include "kernels/registry.h"

namespace mixroof::cli {
namespace {

/// One list twice: rows for machines, cells for people.
struct Listing {
  Json rows = Json::array();
  Table table;
};

std::string optional_si(const std::optional<double>& value, std::string_view unit) {
  return si_text(value.value_or(std::numeric_limits<double>::quiet_NaN()), unit);
}

std::vector<std::string> implementation_names(std::string_view kernel) {
  std::vector<std::string> names;
  for (const Implementation& implementation : cpu_implementations())
    if (implementation.kernel == kernel) names.emplace_back(implementation.name);
  return names;
}

std::vector<std::string> variant_names(const Kernel& kernel) {
  std::vector<std::string> names;
  for (const Case& c : kernel.cases())
    if (std::find(names.begin(), names.end(), c.variant) == names.end()) names.push_back(c.variant);
  return names;
}

Listing list_kernels() {
  Listing list{.table = Table({{"kernel"},
                               {"category", Align::left, 3},
                               {"variants", Align::left, 2},
                               {"on cpu", Align::left, 1},
                               {"what it does"}})};
  for (const Kernel* kernel : all_kernels()) {
    const auto variants = variant_names(*kernel), implementations = implementation_names(kernel->name());
    list.rows.push_back({{"name", kernel->name()},
                         {"category", name(kernel->category())},
                         {"variants", variants},
                         {"implementations", {{"cpu", implementations}}},
                         {"summary", kernel->summary()}});
    list.table.add_row({std::string(kernel->name()), std::string(name(kernel->category())),
                        fmt::format("{}", fmt::join(variants, ", ")),
                        fmt::format("{}", fmt::join(implementations, ", ")), std::string(kernel->summary())});
  }
  return list;
}

Listing list_recipes() {
  Listing list{.table = Table({{"recipe"},
                               {"params", Align::left, 2},
                               {"master", Align::left, 2},
                               {"grads", Align::left, 2},
                               {"moments", Align::left, 3},
                               {"matmul inputs, forward / gradient", Align::left, 1},
                               {"loss scaling", Align::left, 4},
                               {"bytes per parameter", Align::right, 1},
                               {"summary"}})};
  for (const Recipe& r : all_recipes()) {
    const std::string_view loss_scaling = r.loss_scaling == LossScaling::dynamic ? "dynamic" : "none";
    list.rows.push_back({{"name", r.name},
                         {"params", name(r.params)},
                         {"master", r.master ? Json(name(*r.master)) : Json()},
                         {"grads", name(r.grads)},
                         {"moments", name(r.moments)},
                         {"matmul_forward", name(r.matmul_forward)},
                         {"matmul_gradient", name(r.matmul_gradient)},
                         {"loss_scaling", loss_scaling},
                         {"fp8_scaling", name(r.fp8)},
                         {"bytes_per_parameter", r.bytes_per_parameter()},
                         {"bytes_per_parameter_accumulating", r.bytes_per_parameter(true)},
                         {"diagnostic", r.diagnostic},
                         {"summary", r.summary},
                         {"shows", r.diagnostic ? Json(r.shows) : Json()}});
    list.table.add_row({std::string(r.name), std::string(name(r.params)), std::string(r.master ? name(*r.master) : "-"),
                        std::string(name(r.grads)), std::string(name(r.moments)),
                        fmt::format("{} / {}", name(r.matmul_forward), name(r.matmul_gradient)),
                        std::string(loss_scaling), fmt::format("{}", r.bytes_per_parameter()),
                        r.diagnostic ? fmt::format("diagnostic: {}", r.shows) : std::string(r.summary)});
  }
  return list;
}

Listing list_models() {
  Listing list{.table = Table({{"model"},
                               {"family", Align::left, 5},
                               {"layers", Align::right, 1},
                               {"width", Align::right, 1},
                               {"heads", Align::right, 2},
                               {"kv heads", Align::right, 3},
                               {"hidden", Align::right, 3},
                               {"vocabulary", Align::right, 3},
                               {"context", Align::right, 3},
                               {"parameters", Align::right}})};
  for (const Model& m : named_models()) {
    list.rows.push_back({{"name", m.name},
                         {"family", m.family},
                         {"layers", m.layers},
                         {"width", m.width},
                         {"heads", m.heads},
                         {"kv_heads", m.kv_heads},
                         {"head_dim", m.head_dim},
                         {"hidden", m.hidden},
                         {"vocab", m.vocab},
                         {"context", m.context},
                         {"norm_eps", m.norm_eps},
                         {"rope_theta", m.rope_theta > 0 ? Json(m.rope_theta) : Json()},
                         {"tied_head", m.tied_head},
                         {"qkv_bias", m.qkv_bias},
                         {"parameters", m.parameters()}});
    const auto text = [](std::int64_t n) { return fmt::format("{}", n); };
    list.table.add_row({m.name, m.family, text(m.layers), text(m.width), text(m.heads), text(m.kv_heads),
                        text(m.hidden), text(m.vocab),
                        text(m.context), text(m.parameters())});
  }
  return list;
}

Json hardware_row(const Hardware& h) {
  return {{"id", h.id},
          {"name", h.name},
          {"vendor", h.vendor},
          {"kind", h.kind},
          {"architecture", h.architecture},
          {"memory_bytes", optional_or_null(h.memory_bytes)},
          {"memory_bandwidth_bytes_per_s", optional_or_null(h.memory_bandwidth_bytes_per_s)},
          {"l2_bytes", optional_or_null(h.l2_bytes)},
          {"tdp_w", optional_or_null(h.tdp_w)},
          {"peak_dense_flop_per_s", h.peak_dense_flop_per_s},
          {"unsupported_paths", h.unsupported_paths},
          {"sources", h.sources},
          {"confidence", h.confidence}};
}

Listing list_hardware() {
  Listing list{.table = Table({{"id"},
                               {"name", Align::left, 5},
                               {"memory", Align::right, 2},
                               {"bandwidth", Align::right, 1},
                               {"FP32", Align::right, 3},
                               {"TF32", Align::right, 4},
                               {"FP16", Align::right, 3},
                               {"BF16", Align::right},
                               {"FP8", Align::right, 1},
                               {"confidence", Align::left, 6}})};
  for (const Hardware& h : all_hardware()) {
    list.rows.push_back(hardware_row(h));
    const auto peak = [&](Format format) {
      return h.is_unsupported(Hardware::path_of(format)) ? "no" : optional_si(h.peak(format), "FLOP/s");
    };
    list.table.add_row({h.id, h.name, h.memory_bytes ? bytes_text(*h.memory_bytes) : "-",
                        optional_si(h.memory_bandwidth_bytes_per_s, "B/s"), peak(Format::fp32), peak(Format::tf32),
                        peak(Format::fp16), peak(Format::bf16), peak(Format::fp8_e4m3), h.confidence});
  }
  return list;
}

/// What `run` measures on this machine; nothing is measured here. Candidates of one id compete, so ids repeat.
Listing list_ceilings() {
  const std::unique_ptr<Backend> cpu = open_backend("cpu").backend;
  Listing list{
      .table = Table({{"id"}, {"kind", Align::left, 2}, {"unit", Align::left, 3}, {"working set", Align::right, 1}})};
  std::set<std::string> seen;
  for (const CeilingCandidate& candidate : ceiling_candidates(*cpu)) {
    const Ceiling& c = candidate.ceiling;
    if (!seen.insert(c.id).second) continue;
    const bool walks = c.kind == CeilingKind::bandwidth;
    list.rows.push_back({{"id", c.id},
                         {"kind", name(c.kind)},
                         {"unit", c.unit()},
                         {"working_set_bytes", walks ? Json(c.working_set_bytes) : Json(nullptr)}});
    list.table.add_row(
        {c.id, std::string(name(c.kind)), std::string(c.unit()), walks ? bytes_text(c.working_set_bytes) : "-"});
  }
  return list;
}

struct NamedList {
  std::string_view name;
  Listing (*make)();
  std::string_view note;  // below the table
};
constexpr std::array kLists = std::to_array<NamedList>({
    {"kernels", list_kernels, ""},
    {"recipes", list_recipes,
     "Windows of several micro-batches accumulate gradients in fp32: 2 bytes more with 16-bit grads."},
    {"models", list_models, "Any other shape: the path of a Hugging Face config.json of type gpt2, llama, mistral or qwen2."},
    {"hardware", list_hardware,
     "Promised dense peaks with fp32 accumulation; '-' is not known, 'no' not supported. Sources: --format json."},
    {"ceilings", list_ceilings, "What a run on this machine's cpu measures before it rates anything."},
});

std::vector<std::string> list_names() {
  std::vector<std::string> names;
  for (const NamedList& list : kLists) names.emplace_back(list.name);
  return names;
}

int print_list(const std::string& wanted, OutputFormat format) {
  for (const NamedList& list : kLists) {
    if (list.name != wanted) continue;
    const Listing listing = list.make();
    if (format == OutputFormat::json) {
      print(Json{{wanted, listing.rows}}.dump(2) + "\n");
      return kExitOk;
    }
    print(listing.table, format);
    if (!list.note.empty()) print(fmt::format("\n{}\n", list.note));
    return kExitOk;
  }
  throw_unknown("list", wanted, list_names(), "mixroof list --help");
}

Action declare(CLI::App& app) {
  struct Options {
    std::string what;
    OutputFormat format = OutputFormat::text;
  };
  const auto options = std::make_shared<Options>();
  app.add_option("what", options->what, fmt::format("One of {}", fmt::join(list_names(), ", ")))
      ->required()
      ->option_text("NAME");
  add_format_option(app, options->format, {OutputFormat::text, OutputFormat::markdown, OutputFormat::json});
  return [options] { return print_list(options->what, options->format); };
}

}  // namespace

Subcommand list_subcommand() {
  return {.name = "list",
          .summary = "What this build knows by name: kernels, recipes, models, hardware, ceilings",
          .examples = "mixroof list recipes\nmixroof list hardware --format json",
          .declare = declare};
}

}  // namespace mixroof::cli
