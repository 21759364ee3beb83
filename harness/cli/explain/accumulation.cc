// What an accumulator of 16 bits makes of many small terms.
#include "harness/cli/explain/accumulation.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "harness/cli/explain/topic.h"
#include "harness/execute/execution.h"
#include "harness/execute/initialization.h"
#include "harness/execute/token_data.h"
#include "harness/program/lower.h"
#include "kernels/matmul/matmul.h"

namespace mixroof::cli {
namespace {

constexpr int kAdditions = 1000;
constexpr double kTerm = 1e-4;

Section many_small_terms(Workbench& bench) {
  Table table({{"starting at", Align::right},
               {"exact", Align::right},
               {"FP32", Align::right},
               {"FP16", Align::right},
               {"BF16", Align::right}});
  const Values terms(kAdditions, kTerm);
  for (const double start : {0.0, 1.0}) {
    std::vector<std::string> cells = {number(start), number(start + kAdditions * kTerm)};
    for (const Format format : {Format::fp32, Format::fp16, Format::bf16})
      cells.push_back(fmt::format("{:.7g}", bench.accumulate(terms, format, start)));
    table.add_row(cells);
  }
  return {.title = "A thousand additions of 1e-4",
          .text = "One accumulator of each format, added to a thousand times by the kernel that accumulates bias gradients.",
          .table = table,
          .note = "From 1 both 16-bit sums stay: 1e-4 is below half their spacing. From 0 FP16 rounds each term up or down "
                  "the same way every time, and BF16 stops growing where its spacing has become too coarse."};
}

Section dot_products(Workbench& bench) {
  Table table({{"length", Align::right}, {"matmul, FP32 inside", Align::right}, {"FP16 accumulator", Align::right}});
  for (const int length : {1024, 2048, 4096}) {
    const DotProduct dot = dot_of_ones(bench, length);
    table.add_row({number(length), number(dot.matmul), number(dot.in_fp16)});
  }
  return {.title = "A dot product of FP16 ones",
          .text = "",
          .table = table,
          .note = "2048 + 1 is a tie that FP16 rounds back to 2048: a longer sum never gets further."};
}

Section windows(Workbench& bench) {
  Table table({{"micro-batches", Align::right}, {"added in FP32", Align::right}, {"added in BF16", Align::right}});
  for (const int micro_batches : {4, 16, 64}) {
    const WindowError error = window_error(bench, micro_batches);
    table.add_row({number(micro_batches), fmt::format("{:.2f} %", 100 * error.in_fp32),
                   fmt::format("{:.2f} %", 100 * error.in_bf16)});
  }
  return {.title = "The gradient of a window, gpt2-tiny in bf16-master",
          .text = "Relative L2 difference from the gradient in fp32, the micro-batches added up in FP32 (the default) or in "
                  "the BF16 gradients (mixroof run --accumulate-in grads).",
          .table = table,
          .note = "In FP32 the error stays that of one micro-batch; in BF16 every addition adds its own. FP32 accumulation "
                  "costs 2 more bytes per parameter."};
}

Page page() {
  Workbench bench;
  return {.summary = "Accumulation: a sum is as exact as its accumulator, not as its terms.",
          .sections = {many_small_terms(bench), windows(bench), dot_products(bench)},
          .rule = "accumulate in FP32, round once at the end: matrix products, norms, losses and the gradients of a window "
                  "of several micro-batches."};
}

/// Every gradient of one window, scale 1, as the tensors hold it after the update.
Values window_gradient(Workbench& bench, std::string_view recipe, const Window& window, bool accumulate_in_grads) {
  const Model model = find_model("gpt2-tiny");
  const auto seq = static_cast<std::int64_t>(window[0].tokens.size());
  const Batch batch{.micro_batch = 1, .seq = seq, .micro_batches = static_cast<std::int64_t>(window.size())};
  LowerOptions options;
  options.accumulate_in_grads = accumulate_in_grads;
  Execution execution(lower(model, find_recipe(recipe), batch, bench.backend().target(), options), bench.backend(),
                      Placement::arena);
  execution.initialize(initial_parameters(model, /*seed=*/1), /*initial_loss_scale=*/1);
  execution.run_update(window);
  Values all;
  for (const Program::Parameter& parameter : execution.program().parameters) {
    const Values grad = execution.read(parameter.grad);
    all.insert(all.end(), grad.begin(), grad.end());
  }
  return all;
}

double relative_difference(const Values& got, const Values& reference) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - reference[i]) * (got[i] - reference[i]);
    size += reference[i] * reference[i];
  }
  return std::sqrt(difference / size);
}

}  // namespace

DotProduct dot_of_ones(Workbench& bench, int length) {
  const Values ones(static_cast<std::size_t>(length), 1.0);
  const Problem product =
      matmul_problem(MatmulVariant::forward, {.m = 1, .n = 1, .k = length}, Format::fp16, Format::fp16, Format::fp16);
  return {.matmul = bench.run(product, {ones, ones, {}})[2][0], .in_fp16 = bench.accumulate(ones, Format::fp16)};
}

WindowError window_error(Workbench& bench, int micro_batches) {
  constexpr std::int64_t kSeq = 16;
  const TokenData data = TokenData::synthetic(find_model("gpt2-tiny").vocab, /*seed=*/1, micro_batches * kSeq);
  const Window window = data.window(0, micro_batches, 1, kSeq);
  const Values reference = window_gradient(bench, "fp32", window, false);
  return {.in_fp32 = relative_difference(window_gradient(bench, "bf16-master", window, false), reference),
          .in_bf16 = relative_difference(window_gradient(bench, "bf16-master", window, true), reference)};
}

Topic accumulation_topic() {
  return {.name = "accumulation", .summary = "many small terms in 16-bit and in FP32 accumulators", .page = page};
}

}  // namespace mixroof::cli
