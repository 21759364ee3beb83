// What a scale does for an FP8 tensor, and where the next one comes from.
#include "harness/cli/explain/fp8.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>

#include "harness/cli/explain/fp8_outlier.h"
#include "harness/cli/explain/topic.h"
#include "harness/execute/kernel_check.h"
#include "kernels/control.h"
#include "kernels/fp8_scale/fp8_scale.h"
#include "kernels/quantize/quantize.h"

namespace mixroof::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kHistory = 4;

std::string short_number(double value) { return fmt::format("{:.7g}", value); }

Section scale_sizes(Workbench& bench) {
  constexpr std::int64_t kCount = 1000;
  struct Choice {
    const char* text;
    double factor;
  };
  constexpr std::array kChoices = std::to_array<Choice>({{"448 / amax", 1},
                                                         {"4 times too large", 4},
                                                         {"64 times too large", 64},
                                                         {"2^16 times too small", 0x1p-16},
                                                         {"2^20 times too small", 0x1p-20}});
  Table table({{"scale"},
               {"value", Align::right},
               {"saturated", Align::right},
               {"flushed", Align::right},
               {"L2 error", Align::right}});
  for (const Choice& choice : kChoices) {
    const ScaledNormals got = quantize_normals(bench, kCount, choice.factor);
    table.add_row({choice.text, fmt::format("{:.4g}", got.scale), number(got.saturated), number(got.flushed),
                   fmt::format("{:.3g} %", 100 * got.relative_error)});
  }
  return {.title = "A thousand normal values in E4M3",
          .text = "Counted by the quantize kernel: values that saturated, and values that became zero.",
          .table = table,
          .note = "Too large a scale cuts the largest values off, too small a one loses the smallest; in between the error is "
                  "that of 3 mantissa bits."};
}

Section amax_of_a_window(Workbench& bench) {
  const Values micro_batches = {3, 10, 2, 1};
  struct Rule {
    const char* text;
    double amax;
  };
  const std::array kRules = std::to_array<Rule>(
      {{"maximum, 10", window_amax(bench, micro_batches)}, {"last only, 1 (wrong)", 1}, {"average, 4 (wrong)", 4}});
  Table table({{"amax of the window"}, {"next scale", Align::right}, {"10 becomes", Align::right}, {"saturated", Align::right}});
  for (const Rule& rule : kRules) {
    const double scale = scale_after(bench, Format::fp8_e4m3, {rule.amax});
    const Quantized ten = quantize(bench, Format::fp8_e4m3, {10}, scale);
    table.add_row({rule.text, short_number(scale), short_number(ten.values[0]), number(ten.saturated)});
  }
  return {.title = "A window whose micro-batches have amax 3, 10, 2, 1", .text = "", .table = table};
}

Section delayed_and_current(Workbench& bench) {
  Table table({{"window", Align::right},
               {"amax", Align::right},
               {"delayed", Align::right},
               {"saturated", Align::right},
               {"current", Align::right},
               {"saturated", Align::right}});
  const std::vector<ScaledWindow> windows = follow_scales(bench, {1, 1, 8, 8, 1, 1});
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const ScaledWindow& w = windows[i];
    table.add_row({number(static_cast<double>(i) + 1), number(w.amax), short_number(w.delayed_scale),
                   number(w.delayed_saturated), short_number(w.current_scale), number(w.current_saturated)});
  }
  return {.title = "Delayed and current scaling when a tensor grows eightfold",
          .text = "Four values a window: amax, amax/2, amax/4, amax/8. The two scales, and how many of the four saturate.",
          .table = table,
          .note = "Delayed scaling knows the maxima of the windows before: one pass over the tensor, but the first larger "
                  "window saturates, and a history of 4 keeps the small scale for a while. Current scaling reads the tensor "
                  "twice."};
}

Section odd_amaxes(Workbench& bench) {
  struct History {
    const char* text;
    Values amaxes;
    const char* why;
  };
  const std::vector<History> histories = {{"3", {3}, "448 / 3"},
                                          {"0, 0, 0", {0, 0, 0}, "kept"},
                                          {"1e-40", {1e-40}, "4.48e42 clamped to the largest FP32"},
                                          {"2^-149", {0x1p-149}, "clamped"},
                                          {"inf", {kInfinity}, "kept"},
                                          {"NaN, 3", {kNan, 3}, "kept while the NaN is in the history"}};
  Table table({{"amax history"}, {"next scale", Align::right}, {"why"}});
  for (const History& history : histories)
    table.add_row({history.text, short_number(scale_after(bench, Format::fp8_e4m3, history.amaxes)), history.why});
  const auto threshold = [](Format format) { return facts(format).max_finite / facts(Format::fp32).max_finite; };
  return {.title = "Maxima that give no scale, E4M3, from scale 1",
          .text = "",
          .table = table,
          .note = fmt::format("The quotient overflows FP32 below an amax of {:.5g}; in E5M2 below {:.5g}. A tensor of zeros "
                              "stays exactly zero.",
                              threshold(Format::fp8_e4m3), threshold(Format::fp8_e5m2))};
}

Section saturation(Workbench& bench) {
  struct Example {
    const char* text;
    double value;
  };
  constexpr std::array kExamples = std::to_array<Example>({{"447", 447},
                                                           {"464", 464},
                                                           {"465", 465},
                                                           {"1000", 1000},
                                                           {"-1000", -1000},
                                                           {"infinity", kInfinity},
                                                           {"NaN", kNan},
                                                           {"2^-10", 0x1p-10},
                                                           {"2^-10 * 1.0001", 0x1p-10 * 1.0001},
                                                           {"1.5 * 2^-9", 0x1.8p-9}});
  Table table({{"value"}, {"E4M3", Align::right}, {"counted as"}, {"found_inf", Align::right}});
  for (const Example& example : kExamples) {
    const Quantized got = quantize(bench, Format::fp8_e4m3, {example.value}, 1);
    table.add_row({example.text, small_number(got.values[0]),
                   got.saturated != 0 ? "saturated" : got.flushed != 0 ? "flushed" : "", got.found_inf ? "1" : "0"});
  }
  return {.title = "Single values in E4M3, scale 1",
          .text = "",
          .table = table,
          .note = "What is not finite raises found_inf and skips the update, although it saturates."};
}

Section shared_scales(Workbench& bench) {
  constexpr double kOutlier = 1e5;
  Table table({{"a scale is shared by"}, {"scales", Align::right}, {"L2 error of the others", Align::right}, {"flushed", Align::right}});
  for (const SharedScale& shared : share_scales(bench, kOutlier))
    table.add_row({shared.text, number(static_cast<double>(shared.scales)), fmt::format("{:.3g} %", 100 * shared.relative_error),
                   number(shared.flushed)});
  return {.title = "8 x 256 normal values in E4M3, one of them replaced by 100,000",
          .text = "Recipes fp8-current, fp8-channel, fp8-block and mxfp8.",
          .table = table,
          .note = "An outlier costs those that share its scale; smaller blocks confine it, for more scales to store and apply."};
}

Page page() {
  Workbench bench;
  return {.summary = "FP8: E4M3 spans 2^-9 to 448, E5M2 2^-16 to 57344; a scale for each tensor moves its values there.",
          .sections = {scale_sizes(bench), amax_of_a_window(bench), delayed_and_current(bench), odd_amaxes(bench),
                       shared_scales(bench), saturation(bench)},
          .rule = "scale = largest finite value / amax, with the amax of a window taken over all of its micro-batches; an amax "
                  "of zero, infinity or NaN keeps the scale. Saturate rather than overflow, and count what saturated and what "
                  "became zero."};
}

/// Quantizes one micro-batch; `amax` is what the window has seen before (nothing: its first micro-batch).
Quantized quantize_into(Workbench& bench, Format format, const Values& x, double scale, bool accumulate, double amax) {
  const auto count = static_cast<std::int64_t>(x.size());
  const std::vector<Values> after = bench.run(quantize_problem(count, Format::fp32, format, accumulate),
                                              {x, {scale}, {}, {amax}, {0, 0}, Values(kControlSlots)});
  Quantized result{.values = after[2], .amax = after[3][0], .saturated = after[4][0], .flushed = after[4][1]};
  for (double& value : result.values) value /= scale;
  result.found_inf = slot(after[5].data(), Slot::found_inf) != 0;
  return result;
}

/// State of delayed scaling for one tensor.
struct DelayedScale {
  double scale = 1;
  Values history = Values(kHistory, 0.0);

  void take(Workbench& bench, Format format, double amax) {
    const std::vector<Values> after = bench.run(fp8_scale_problem(1, kHistory, /*margin=*/0),
                                                {{amax}, history, {facts(format).max_finite}, {scale}, {0, 0}});
    history = after[1];
    scale = after[3][0];
  }
};

}  // namespace

Quantized quantize(Workbench& bench, Format format, const Values& x, double scale) {
  return quantize_into(bench, format, x, scale, /*accumulate=*/false, 0);
}

double scale_after(Workbench& bench, Format format, const Values& amaxes, double initial_scale) {
  DelayedScale delayed{.scale = initial_scale};
  for (const double amax : amaxes) delayed.take(bench, format, amax);
  return delayed.scale;
}

double window_amax(Workbench& bench, const Values& micro_batch_magnitudes) {
  double amax = 0;
  for (const double magnitude : micro_batch_magnitudes)
    amax = quantize_into(bench, Format::fp8_e4m3, {magnitude}, 1, /*accumulate=*/true, amax).amax;
  return amax;
}

std::vector<ScaledWindow> follow_scales(Workbench& bench, const Values& amaxes) {
  DelayedScale delayed;
  std::vector<ScaledWindow> windows;
  for (const double amax : amaxes) {
    const Values x = {amax, amax / 2, amax / 4, amax / 8};
    const double current_scale = scale_after(bench, Format::fp8_e4m3, {amax});
    const Quantized with_delayed = quantize(bench, Format::fp8_e4m3, x, delayed.scale);
    windows.push_back({.amax = amax,
                       .delayed_scale = delayed.scale,
                       .delayed_saturated = with_delayed.saturated,
                       .current_scale = current_scale,
                       .current_saturated = quantize(bench, Format::fp8_e4m3, x, current_scale).saturated});
    delayed.take(bench, Format::fp8_e4m3, with_delayed.amax);
  }
  return windows;
}

ScaledNormals quantize_normals(Workbench& bench, std::int64_t count, double factor) {
  const Problem problem = quantize_problem(count, Format::fp32, Format::fp8_e4m3, false);
  const Values x = make_inputs(quantize_kernel(), problem, /*seed=*/1)[0];
  const double amax = quantize(bench, Format::fp8_e4m3, x, 1).amax;
  const double scale = scale_after(bench, Format::fp8_e4m3, {amax}) * factor;
  const Quantized got = quantize(bench, Format::fp8_e4m3, x, scale);
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    difference += (got.values[i] - x[i]) * (got.values[i] - x[i]);
    size += x[i] * x[i];
  }
  return {.scale = scale,
          .saturated = got.saturated,
          .flushed = got.flushed,
          .relative_error = std::sqrt(difference / size)};
}

Topic fp8_topic() { return {.name = "fp8", .summary = "scales of FP8 tensors: too large, too small, late", .page = page}; }

}  // namespace mixroof::cli
