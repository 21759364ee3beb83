// The order of unscaling and clipping, and norms that do not overflow.
#include "harness/cli/explain/clipping.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/cli/explain/topic.h"
#include "kernels/grad_check/grad_check.h"

namespace mixroof::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string short_number(double value) { return fmt::format("{:.5g}", value); }

Section order(Workbench& bench) {
  const Values gradient = {0.25, 0.25, 0.25, 0.25};
  Table table({{"gradient"}, {"norm seen", Align::right}, {"coefficient", Align::right}, {"norm applied", Align::right}});
  const auto row = [&](const std::string& text, const Clipped& c) {
    table.add_row({text, short_number(c.norm), short_number(c.coefficient), short_number(norm(bench, c.applied))});
  };
  for (const double scale : {65536.0, 256.0})
    for (const int micro_batches : {1, 4})
      row(fmt::format("scale {}, window of {}", number(scale), micro_batches),
          clip(bench, gradient, 1, scale, micro_batches));
  row("clipped first, scale 65536 (wrong)", clip_before_unscaling(bench, gradient, 1, 65536));
  row("unscaled twice, scale 65536 (wrong)", unscale_twice(bench, gradient, 1, 65536));
  return {.title = "A gradient of norm 0.5, limit 1",
          .text = "Windows of 1 and of 4 micro-batches, unscaled once, then clipped; below, the usual mistakes.",
          .table = table,
          .note = "Nothing is to be clipped, and the norm does not depend on the scale. Clipped while scaled, the gradient "
                  "is 32768 times too small."};
}

Section per_micro_batch(Workbench& bench) {
  const Values gradients = {3, -2};
  Table table({{"gradients 3 and -2, limit 1"}, {"applied", Align::right}});
  table.add_row({"added, then clipped", number(clip(bench, {bench.accumulate(gradients, Format::fp32)}, 1).applied[0])});
  table.add_row({"each clipped, then added (wrong)", number(clip_each(bench, gradients, 1))});
  return {.title = "Two micro-batches of one window",
          .text = "",
          .table = table,
          .note = "Clipping is not linear: 1 and -1 cancel, where the window's gradient is 1."};
}

Section large_norms(Workbench& bench) {
  Values gradients(100, 1e20);
  const Clipped finite = clip(bench, gradients, 1);
  const double fp32 = fp32_norm(bench, gradients);
  gradients[50] = kInfinity;
  const Clipped infinite = clip(bench, gradients, 1);
  Table table({{"sum of squares"}, {"norm", Align::right}, {"each applied", Align::right}});
  table.add_row({"in double", short_number(finite.norm), short_number(finite.applied[0])});
  table.add_row({"in FP32 (wrong)", short_number(fp32), short_number(1e20 * std::min(1.0, 1 / fp32))});
  table.add_row({"in double, one gradient infinite", short_number(infinite.norm),
                 infinite.skipped != 0 ? "none: skipped" : short_number(infinite.applied[0])});
  return {.title = "A hundred gradients of 1e20, limit 1",
          .text = "",
          .table = table,
          .note = "Finite gradients have a finite norm; an infinite norm would set them all to zero without a word."};
}

Page page() {
  Workbench bench;
  return {.summary = "Clipping: the limit is meant for the gradient of the whole window, as it truly is.",
          .sections = {order(bench), per_micro_batch(bench), large_norms(bench)},
          .rule = "accumulate, unscale once, check that all is finite, clip at the global norm, apply. Unscaling and clipping "
                  "are one factor, applied in FP32 registers by the optimizer; the norm is summed in double. A gradient that "
                  "is not finite skips the update, it never becomes a zero."};
}

Clipped clipped_by(const TensorUpdate& update) {
  return {.norm = update[Slot::grad_norm],
          .coefficient = update[Slot::clip_coefficient],
          .applied = update.moment1,
          .skipped = update[Slot::updates_skipped]};
}

TensorUpdate fresh_update(Workbench& bench, std::size_t count, double max_norm, double scale) {
  return {bench, {.update = {.max_norm = max_norm}, .loss_scale = scale}, Values(count, 0.0)};
}

Values times(Values values, double factor) {
  for (double& value : values) value *= factor;
  return values;
}

}  // namespace

Clipped clip(Workbench& bench, const Values& gradient, double max_norm, double scale, int micro_batches) {
  TensorUpdate update = fresh_update(bench, gradient.size(), max_norm, scale);
  Values sum;
  for (const double g : gradient)
    sum.push_back(bench.accumulate(Values(static_cast<std::size_t>(micro_batches), g * scale / micro_batches), Format::fp32));
  update.window(sum);
  return clipped_by(update);
}

Clipped clip_before_unscaling(Workbench& bench, const Values& gradient, double max_norm, double scale) {
  TensorUpdate clipping = fresh_update(bench, gradient.size(), max_norm, 1);
  clipping.window(times(gradient, scale));
  TensorUpdate unscaling = fresh_update(bench, gradient.size(), 0, scale);
  unscaling.window(clipping.moment1);
  Clipped result = clipped_by(clipping);
  result.applied = unscaling.moment1;
  return result;
}

Clipped unscale_twice(Workbench& bench, const Values& gradient, double max_norm, double scale) {
  TensorUpdate update = fresh_update(bench, gradient.size(), max_norm, scale);
  update.window(gradient);  // as if unscaled in memory before
  return clipped_by(update);
}

double clip_each(Workbench& bench, const Values& micro_batch_gradients, double max_norm) {
  Values clipped;
  for (const double gradient : micro_batch_gradients) clipped.push_back(clip(bench, {gradient}, max_norm).applied[0]);
  return bench.accumulate(clipped, Format::fp32);
}

double norm(Workbench& bench, const Values& values) {
  const Problem problem = grad_check_problem(static_cast<std::int64_t>(values.size()), Format::fp32, /*accumulate=*/false);
  const Values control = bench.run(problem, {values, Values(kControlSlots)})[1];
  return std::sqrt(slot(control.data(), Slot::grad_square_sum));
}

double fp32_norm(Workbench& bench, const Values& values) {
  Values squares;
  for (const double value : values) squares.push_back(value * value);
  return std::sqrt(bench.accumulate(bench.cast(squares, Format::fp32), Format::fp32));
}

Topic clipping_topic() {
  return {.name = "clipping", .summary = "unscale once, then clip the whole window", .page = page};
}

}  // namespace mixroof::cli
