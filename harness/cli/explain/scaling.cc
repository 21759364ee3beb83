// Why FP16 gradients are scaled, and how the scale finds its value.
#include "harness/cli/explain/scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "harness/cli/explain/topic.h"
#include "kernels/cross_entropy/cross_entropy.h"

namespace mixroof::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kStart = 65536;

Section underflow(Workbench& bench) {
  constexpr double kGradient = 0x1p-26, kScale = 4096;
  const ScaledGradient g = scale_gradient(bench, kGradient, kScale);
  Table table({{"order"}, {"FP16 holds", Align::right}, {"applied", Align::right}});
  table.add_row({"scale, cast, unscale in FP32 registers", small_number(g.scaled_then_cast), small_number(g.applied)});
  table.add_row({"cast, then scale", small_number(g.cast_then_scaled), "0"});
  table.add_row({"scale, cast, unscale in FP16 memory", small_number(g.unscaled_in_fp16), "0"});
  table.add_row({"cross_entropy kernel, loss scale 1", small_number(loss_gradient(bench, 1)), "0"});
  table.add_row({"cross_entropy kernel, loss scale 4096", small_number(loss_gradient(bench, kScale)),
                 small_number(loss_gradient(bench, kScale) / kScale)});
  return {.title = "A gradient of 2^-26 in FP16, loss scale 4096",
          .text = "",
          .table = table,
          .note = "The smallest FP16 value is 2^-24: what the cast has flushed to zero no scale brings back."};
}

Section pattern(Workbench& bench) {
  const std::vector<bool> overflows = {false, false, false, true, false, false, false, false, true, false};
  const ScaleTrace trace = trace_scale(bench, {.dynamic_scale = true, .growth_interval = 4}, kStart, overflows);
  Table table({{"window", Align::right}, {"gradients"}, {"scale used", Align::right}, {"scale after", Align::right}});
  for (std::size_t i = 0; i < overflows.size(); ++i)
    table.add_row({number(static_cast<double>(i) + 1), overflows[i] ? "inf: skipped" : "finite", number(trace.used[i]),
                   number(trace.after[i])});
  return {.title = "The dynamic scale, growth interval 4",
          .text = "",
          .table = table,
          .note = fmt::format("{} applied, {} skipped. Halved by an overflow, doubled after 4 applied windows in a row.",
                              number(trace.applied), number(trace.skipped))};
}

Section overflow_inside(Workbench& bench) {
  const WindowOverflow window = overflow_in_window(bench, {1, kInfinity, 1, 1}, 3);
  // The infinity stays in the sum: asked after each micro-batch, three of four overflow.
  const ScaleTrace per_micro_batch = trace_scale(bench, {.dynamic_scale = true}, kStart, {false, true, true, true});
  Table table({{"the scale is updated"}, {"from", Align::right}, {"to", Align::right}});
  table.add_row({"once per window", number(kStart), number(window.scale_after_overflow)});
  table.add_row({"per micro-batch (wrong)", number(kStart), number(per_micro_batch.after.back())});
  return {.title = "An overflow in the second of four micro-batches",
          .text = "Then three clean windows.",
          .table = table,
          .note = fmt::format("The whole window is skipped and its weight of 1 is still {}; the next ones are clean: {} "
                              "skipped, {} applied.",
                              number(window.weight_after_overflow), number(window.skipped), number(window.applied))};
}

Section one_scale(Workbench& bench) {
  const MixedScales mixed = mix_scales(bench, {2, 4}, {8, 16});
  Table table({{"gradients 2 and 4 of one window"}, {"buffer", Align::right}, {"unscaled", Align::right}});
  table.add_row({"one scale, 8", number(mixed.one_scale * 8), number(mixed.one_scale)});
  table.add_row({"scale 8, then 16 (wrong)", number(mixed.buffer), number(mixed.unscaled_by_last)});
  return {.title = "One scale for a whole window",
          .text = "",
          .table = table,
          .note = "2 + 4 is 6; a scale that changes inside the window gives 5."};
}

/// The first window, from 1, after which the scale is `value`; 0: none.
int first_window_with(const Values& after, double value) {
  const auto found = std::find(after.begin(), after.end(), value);
  return found == after.end() ? 0 : static_cast<int>(found - after.begin()) + 1;
}

Section bounds(Workbench& bench) {
  const std::vector<bool> clean(150, false), bad(170, true);
  const UpdateConstants growing{.dynamic_scale = true, .growth_interval = 1};
  UpdateConstants unbounded = growing;
  unbounded.floor = 0;
  unbounded.ceiling = kInfinity;
  const ScaleTrace grown = trace_scale(bench, growing, kStart, clean), grown_free = trace_scale(bench, unbounded, kStart, clean);
  const ScaleTrace sunk = trace_scale(bench, growing, kStart, bad), sunk_free = trace_scale(bench, unbounded, kStart, bad);
  Table table({{"windows"}, {"scale", Align::right}, {"after", Align::right}, {"then"}});
  const auto row = [&](const char* windows, const ScaleTrace& trace, double scale, std::string then) {
    table.add_row({windows, small_number(scale), number(first_window_with(trace.after, scale)), std::move(then)});
  };
  row("150 clean, ceiling 2^24", grown, grown.after.back(),
      fmt::format("stays; {} applied, {} skipped", number(grown.applied), number(grown.skipped)));
  row("150 clean, no ceiling", grown_free, kInfinity, "every gradient is infinite");
  row("all infinite, floor 1", sunk, sunk.after.back(),
      fmt::format("window {} ends the recipe: failed", sunk.exhausted_in));
  row("all infinite, no floor", sunk_free, 0x1p-128, "its inverse is infinite in FP32");
  row("all infinite, no floor", sunk_free, 0, "every gradient is zero");
  return {.title = "Ceiling and floor, from 65536, growth interval 1",
          .text = "The scale that is reached, after how many windows, and what then.",
          .table = table};
}

Page page() {
  Workbench bench;
  return {.summary = "Loss scaling: FP16 flushes small gradients to zero; multiplying the loss moves them into range, as long "
                     "as nothing overflows.",
          .sections = {underflow(bench), pattern(bench), overflow_inside(bench), bounds(bench), one_scale(bench)},
          .rule = "scale before the first cast, at the loss; one scale per window; unscale once, in FP32 registers, in the "
                  "optimizer. An overflow anywhere skips the whole window, halves the scale once and leaves the state bit "
                  "for bit. The scale keeps between a floor of 1 and a ceiling of 2^24, both options of mixroof run."};
}

}  // namespace

ScaledGradient scale_gradient(Workbench& bench, double gradient, double scale) {
  TensorUpdate update(bench, {.loss_scale = scale}, {0.0});
  const double scaled = bench.cast({gradient * scale}, Format::fp16)[0];
  update.window({scaled});
  return {.scaled_then_cast = scaled,
          .applied = update.moment1[0],
          .cast_then_scaled = bench.cast({gradient}, Format::fp16)[0] * scale,
          .unscaled_in_fp16 = bench.cast({scaled / scale}, Format::fp16)[0]};
}

double loss_gradient(Workbench& bench, double scale) {
  constexpr std::int64_t kVocab = 4096;
  Values control(kControlSlots);
  slot(control.data(), Slot::effective_tokens) = 0x1p14;
  slot(control.data(), Slot::loss_scale) = scale;
  const Problem problem = cross_entropy_problem(1, kVocab, Format::fp16, /*accumulate=*/false);
  return bench.run(problem, {Values(kVocab, 0.0), {0.0}, {}, control})[0][1];  // of a logit beside the target
}

ScaleTrace trace_scale(Workbench& bench, const UpdateConstants& constants, double initial,
                       const std::vector<bool>& overflows) {
  TensorUpdate update(bench, {.update = constants, .loss_scale = initial}, {1.0});
  ScaleTrace trace;
  for (const bool overflow : overflows) {
    update.window({overflow ? kInfinity : 1.0});
    trace.used.push_back(update[Slot::scale_used]);
    trace.after.push_back(update[Slot::loss_scale]);
    if (update[Slot::scale_exhausted] != 0 && trace.exhausted_in == 0)
      trace.exhausted_in = static_cast<int>(trace.after.size());
  }
  trace.applied = update[Slot::updates_applied];
  trace.skipped = update[Slot::updates_skipped];
  trace.growths = update[Slot::growths];
  trace.final_weights = update.weights;
  return trace;
}

WindowOverflow overflow_in_window(Workbench& bench, const Values& gradients, int clean_windows) {
  TensorUpdate update(bench, {.update = {.dynamic_scale = true}, .loss_scale = kStart}, {1.0});
  update.window({bench.accumulate(gradients, Format::fp32)});
  WindowOverflow result{.weight_after_overflow = update.weights[0], .scale_after_overflow = update[Slot::loss_scale]};
  for (int i = 0; i < clean_windows; ++i) update.window({1.0});
  result.applied = update[Slot::updates_applied];
  result.skipped = update[Slot::updates_skipped];
  return result;
}

MixedScales mix_scales(Workbench& bench, const Values& gradients, const Values& scales) {
  Values one, mixed;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    one.push_back(gradients[i] * scales[0]);
    mixed.push_back(gradients[i] * scales[i]);
  }
  const auto unscaled = [&](double buffer, double scale) {
    TensorUpdate update(bench, {.loss_scale = scale}, {0.0});
    update.window({buffer});
    return update.moment1[0];
  };
  const double buffer = bench.accumulate(mixed, Format::fp32);
  return {.one_scale = unscaled(bench.accumulate(one, Format::fp32), scales[0]),
          .buffer = buffer,
          .unscaled_by_last = unscaled(buffer, scales.back())};
}

Topic scaling_topic() {
  return {.name = "scaling", .summary = "small FP16 gradients, and the dynamic loss scale", .page = page};
}

}  // namespace mixroof::cli
