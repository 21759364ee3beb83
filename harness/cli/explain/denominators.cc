// What the loss and the gradient of a window are divided by.
#include "harness/cli/explain/denominators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/cli/explain/tensor_update.h"
#include "harness/cli/explain/topic.h"
#include "kernels/bias_grad/bias_grad.h"
#include "kernels/cross_entropy/cross_entropy.h"

namespace mixroof::cli {
namespace {

std::string short_number(double value) { return fmt::format("{:.6g}", value); }

std::string describe(const std::vector<MicroBatchMeans>& window, double MicroBatchMeans::* value) {
  std::string text;
  for (const MicroBatchMeans& m : window)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", m.tokens > 0 ? number(m.*value) : "none");
  return text;
}

std::string describe_tokens(const std::vector<MicroBatchMeans>& window) {
  std::string text;
  for (const MicroBatchMeans& m : window) text += fmt::format("{}{}", text.empty() ? "" : ", ", m.tokens);
  return text;
}

Section mean_of_means(Workbench& bench) {
  const std::vector<std::vector<MicroBatchMeans>> windows = {
      {{8, 1, 0.5}, {2, 4, -1}}, {{12, 2, 0.25}, {3, 5, 1}, {1, 9, -4}}, {{4, 3, 1}, {0, 0, 0}, {6, 1.5, -0.5}}};
  Table table({{"effective tokens"},
               {"mean losses"},
               {"window loss", Align::right},
               {"mean of means", Align::right}});
  for (const auto& window : windows) {
    const WindowMeans means = average_window(bench, window);
    table.add_row({describe_tokens(window), describe(window, &MicroBatchMeans::loss), short_number(means.loss),
                   short_number(means.mean_of_means)});
  }
  return {.title = "Micro-batches with different numbers of effective tokens",
          .text = "Losses by the cross_entropy kernel, which adds to the window's sum.",
          .table = table,
          .note = "One big batch of the same tokens has the window loss: sum over tokens / tokens. The mean of means, the usual mistake, lets a "
                  "short micro-batch count as much as a long one."};
}

Section gradients(Workbench& bench) {
  const std::vector<MicroBatchMeans> window = {{8, 1, 0.5}, {2, 4, -1}};
  const WindowMeans means = average_window(bench, window);
  Table table({{"gradient of 8 tokens 0.5, of 2 tokens -1"}, {"window", Align::right}});
  table.add_row({"each token divided by the window's 10", short_number(means.gradient)});
  table.add_row({"mean of the two means (wrong)", short_number((window[0].gradient + window[1].gradient) / 2)});
  return {.title = "Their gradient",
          .text = "",
          .table = table,
          .note = "Here the mistake even turns the sign."};
}

Section last_window(Workbench& bench) {
  const std::vector<MicroBatchMeans> three(3, {4, 2, 1});
  const WindowMeans means = average_window(bench, three);
  constexpr double kFullWindow = 16;
  const double share = means.effective_tokens / kFullWindow;
  Table table({{"divided by"}, {"loss", Align::right}, {"gradient", Align::right}});
  table.add_row({fmt::format("its own {} tokens", number(means.effective_tokens)), short_number(means.loss),
                 short_number(means.gradient)});
  table.add_row({"a full window's 16 (wrong)", short_number(means.loss_sum / kFullWindow),
                 short_number(means.gradient * share)});
  return {.title = "A last window of 3 instead of 4 micro-batches",
          .text = "4 tokens each, mean loss 2, mean gradient 1.",
          .table = table,
          .note = "A fixed divisor makes the last update a quarter too small."};
}

Section no_tokens(Workbench& bench) {
  const WindowMeans means = average_window(bench, {{0, 0, 0}});
  Table table({{"a window with 0 effective tokens"}, {"result"}});
  table.add_row({"loss sum", number(means.loss_sum)});
  table.add_row({"gradient", number(means.gradient)});
  table.add_row({"loss per token", std::isnan(means.loss) ? "none" : number(means.loss)});
  table.add_row({"update", means.applied ? "applied" : "skipped: no decay, no growth of the scale"});
  return {.title = "Nothing to divide by",
          .text = "",
          .table = table,
          .note = "No division by zero, and a skipped update leaves the state bit for bit."};
}

Page page() {
  Workbench bench;
  return {.summary = "Denominators: a window must equal one big batch of its tokens, however it was cut.",
          .sections = {mean_of_means(bench), gradients(bench), last_window(bench), no_tokens(bench)},
          .rule = "sum over effective tokens, divided by their number in this window. The count is known before the first "
                  "micro-batch, and the loss gradient is divided by it at its source."};
}

/// Logits of two classes whose cross entropy at the first is `loss`: ln(1 + e^x) = loss for x = ln(e^loss - 1).
Values logits_of(std::int64_t rows, double loss) {
  Values logits;
  for (std::int64_t i = 0; i < rows; ++i) logits.insert(logits.end(), {0.0, std::log(std::exp(loss) - 1)});
  return logits;
}

double count_tokens(const std::vector<MicroBatchMeans>& window) {
  std::int64_t tokens = 0;
  for (const MicroBatchMeans& m : window) tokens += m.tokens;
  return static_cast<double>(tokens);
}

double mean_of_means_of(const std::vector<MicroBatchMeans>& window) {
  double sum = 0, count = 0;
  for (const MicroBatchMeans& m : window)
    if (m.tokens > 0) sum += m.loss, ++count;
  return count > 0 ? sum / count : 0;
}

}  // namespace

WindowMeans average_window(Workbench& bench, const std::vector<MicroBatchMeans>& window) {
  WindowMeans result;
  result.effective_tokens = count_tokens(window);
  result.mean_of_means = mean_of_means_of(window);
  Values control(kControlSlots), gradient = {0.0};
  slot(control.data(), Slot::effective_tokens) = result.effective_tokens;
  slot(control.data(), Slot::loss_scale) = 1;
  for (std::size_t i = 0; i < window.size(); ++i) {
    const MicroBatchMeans& m = window[i];
    const std::int64_t rows = std::max<std::int64_t>(m.tokens, 1);  // without tokens: one masked row
    const bool has_tokens = m.tokens > 0, accumulate = i > 0;
    control = bench.run(cross_entropy_problem(rows, 2, Format::fp32, accumulate),
                        {logits_of(rows, has_tokens ? m.loss : 1), Values(static_cast<std::size_t>(rows), has_tokens ? 0 : -1),
                         {}, control})[3];
    const double of_token = has_tokens ? m.gradient / result.effective_tokens : 0;
    gradient = bench.run(bias_grad_problem(rows, 1, Format::fp32, Format::fp32, accumulate),
                         {Values(static_cast<std::size_t>(rows), of_token), gradient})[1];
  }
  TensorUpdate update(bench, {}, {1.0});
  update.window(gradient, result.effective_tokens);
  result.loss_sum = slot(control.data(), Slot::loss_sum);
  result.loss = result.effective_tokens > 0 ? result.loss_sum / result.effective_tokens
                                            : std::numeric_limits<double>::quiet_NaN();
  result.gradient = gradient[0];
  result.applied = update[Slot::apply] != 0;
  return result;
}

Topic denominators_topic() {
  return {.name = "denominators", .summary = "what the loss and gradient of a window are divided by", .page = page};
}

}  // namespace mixroof::cli
