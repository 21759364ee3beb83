// Worked examples of scaling, clipping and denominators. What an example asks is told by the names of its inputs; the
// product's kernels answer it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "harness/execute/kernel_run.h"
#include "harness/oracle/scaling.h"
#include "kernels/adamw/adamw.h"
#include "kernels/bias_grad/bias_grad.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/grad_check/grad_check.h"

namespace mixroof {
namespace {

constexpr const char* kGroup = "scaling";
constexpr double kRelative = 1e-14;

using Values = std::vector<double>;
using Figures = std::map<std::string, Values>;  // by the names that `expected` uses

struct Backends {
  Backend& reference;
  Backend& device;
};

double norm_of(const Values& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

/// Finite check and decision of a window that ends with these scaled gradients.
ControlLoop decided(Backend& backend, const UpdateConstants& constants, double scale, const Values& scaled_grad) {
  ControlLoop loop(backend, constants, scale);
  loop[Slot::effective_tokens] = 1;
  const auto count = static_cast<std::int64_t>(scaled_grad.size());
  loop.control() = run_on(backend, grad_check_kernel(), grad_check_problem(count, Format::fp32, false),
                          {scaled_grad, loop.control()})[1];
  loop.decide();
  return loop;
}

/// The gradients as the optimizer takes them: with β1 = 0 they are the first moment.
Values taken(Backend& backend, ControlLoop& loop, const Values& scaled_grad) {
  const Values zeros(scaled_grad.size(), 0.0);
  const Problem problem = adamw_problem(static_cast<std::int64_t>(scaled_grad.size()), Format::fp32, Format::fp32,
                                        false, Format::fp32, {.beta1 = 0});
  return run_on(backend, adamw_kernel(), problem, {scaled_grad, zeros, zeros, zeros, loop.control()})[2];
}

Values times(const Values& values, double factor) {
  Values product = values;
  for (double& value : product) value *= factor;
  return product;
}

/// gradient, scale, max_norm: scaled, checked, clipped and unscaled in one factor.
Figures clip(const Backends& on, const OracleEntry& in) {
  const double scale = in.number("scale");
  const Values scaled = times(in.numbers("gradient"), scale);
  ControlLoop loop = decided(on.reference, {.beta1 = 0, .max_norm = in.number("max_norm")}, scale, scaled);
  const Values clipped = taken(on.reference, loop, scaled);
  const Values norm = {loop[Slot::grad_norm]};
  return {{"clipped", clipped},
          {"norm", norm},
          {"norm_before", norm},
          {"norm_after", {norm_of(clipped)}},
          {"coefficient", {loop[Slot::clip_coefficient]}}};
}

/// gradients of the micro-batches of one window, a single number each: summed first, then clipped.
Figures clip_window(const Backends& on, const OracleEntry& in) {
  const Values gradients = in.numbers("gradients");
  const Problem sum =
      bias_grad_problem(static_cast<std::int64_t>(gradients.size()), 1, Format::fp32, Format::fp32, false);
  const Values window = run_on(on.reference, bias_grad_kernel(), sum, {gradients, {}})[1];
  ControlLoop loop = decided(on.reference, {.beta1 = 0, .max_norm = in.number("max_norm")}, 1, window);
  return {{"clipped", taken(on.reference, loop, window)}, {"norm", {loop[Slot::grad_norm]}}};
}

/// gradients of a window's micro-batches and scales that a scaler had meanwhile: the product has one scale a window.
Figures mixed_scales(const Backends& on, const OracleEntry& in) {
  const double scale = in.at("scales").at(std::size_t{0}).number();
  const Values scaled = times(in.numbers("gradients"), scale);
  const Problem sum = bias_grad_problem(static_cast<std::int64_t>(scaled.size()), 1, Format::fp32, Format::fp32, false);
  const Values window = run_on(on.reference, bias_grad_kernel(), sum, {scaled, {}})[1];
  ControlLoop loop = decided(on.reference, {.beta1 = 0}, scale, window);
  return {{"sum", taken(on.reference, loop, window)}};
}

/// values, times, max_norm: finite fp32 gradients, whose norm must be finite too.
Figures global_norm(const Backends& on, const OracleEntry& in) {
  Values grad;
  const Values values = in.numbers("values");
  for (std::int64_t i = 0; i < in.whole("times"); ++i) grad.insert(grad.end(), values.begin(), values.end());
  ControlLoop loop = decided(on.device, {.max_norm = in.number("max_norm")}, 1, grad);
  return {{"norm", {loop[Slot::grad_norm]}}, {"coefficient", {loop[Slot::clip_coefficient]}}};
}

/// Losses and gradients of micro-batches with different numbers of effective tokens. Two logits, 0 at the target and
/// ln(e^L - 1) beside it, have the loss ln(1 + e^L - 1) = L; their gradient there, (e^-L - 1) / tokens of the window,
/// tells what the product divides by.
Figures window_means(const Backends& on, const OracleEntry& in) {
  const OracleEntry tokens = in.at("effective_tokens"), losses = in.at("mean_loss"), gradients = in.at("mean_gradient");
  Values control(kControlSlots, 0.0), gradient = {0.0};
  slot(control.data(), Slot::loss_scale) = 1;
  double& window_tokens = slot(control.data(), Slot::effective_tokens);
  for (const double n : tokens.numbers()) window_tokens += n;
  const double count = window_tokens;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int64_t effective = tokens.at(i).whole(), rows = std::max<std::int64_t>(effective, 1);
    const double loss = effective > 0 ? losses.at(i).number() : 1;
    Values logits;
    for (std::int64_t row = 0; row < rows; ++row) logits.insert(logits.end(), {0.0, std::log(std::expm1(loss))});
    const Values targets(static_cast<std::size_t>(rows), effective > 0 ? 0 : -1);
    const auto after = run_on(on.reference, cross_entropy_kernel(), cross_entropy_problem(rows, 2, Format::fp32, i > 0),
                              {logits, targets, {}, control});
    control = after[3];
    const double share = after[0][0] / std::expm1(-loss);  // of one token
    gradient = run_on(on.reference, bias_grad_kernel(), bias_grad_problem(rows, 1, Format::fp32, Format::fp32, i > 0),
                      {Values(static_cast<std::size_t>(rows), share * gradients.at(i).number()), gradient})[1];
  }
  return {
      {"loss", {slot(control.data(), Slot::loss_sum) / count}}, {"gradient", gradient}, {"effective_tokens", {count}}};
}

/// Windows of micro-batches of which some overflow: one decision each.
Figures overflowing_windows(const Backends& on, const OracleEntry& in) {
  ControlLoop loop(on.device, {.dynamic_scale = true, .growth_interval = in.number("growth_interval")},
                   in.number("init_scale"));
  Figures figures;
  for (const OracleEntry& window : in.items("found_inf_per_micro_batch")) {
    // An infinity of any micro-batch stays in the accumulated gradient.
    Values sum = {1.0};
    for (const double found : window.numbers()) sum[0] += found != 0 ? std::numeric_limits<double>::infinity() : 1.0;
    loop[Slot::effective_tokens] = 1;
    loop.control() =
        run_on(on.device, grad_check_kernel(), grad_check_problem(1, Format::fp32, false), {sum, loop.control()})[1];
    loop.decide();
    loop.advance();
    figures["scale_after"].push_back(loop[Slot::loss_scale]);
    figures["skipped"].push_back(loop[Slot::apply] == 0);
  }
  return figures;
}

struct Question {
  std::array<const char*, 3> inputs;  // all of them present
  Figures (*answer)(const Backends& on, const OracleEntry& inputs);
};
constexpr Question kQuestions[] = {
    {{"gradient", "scale", "max_norm"}, clip},
    {{"gradients", "max_norm", "max_norm"}, clip_window},
    {{"gradients", "scales", "scales"}, mixed_scales},
    {{"values", "times", "max_norm"}, global_norm},
    {{"effective_tokens", "mean_loss", "mean_gradient"}, window_means},
    {{"found_inf_per_micro_batch", "init_scale", "growth_interval"}, overflowing_windows},
};

const Question* find_question(const OracleEntry& inputs) {
  for (const Question& question : kQuestions)
    if (std::all_of(question.inputs.begin(), question.inputs.end(), [&](const char* key) { return inputs.has(key); }))
      return &question;
  return nullptr;
}

double least_magnitude_difference(const Values& a, const Values& b) {
  double most = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    most = std::max(most, std::fabs(a[i] - b[i]) - kRelative * std::fabs(b[i]));
  return most;
}

/// No figure may be what the usual mistake gives, unless that is what is expected.
void compare_wrong(const OracleEntry& example, const Figures& figures, Comparison& c) {
  if (!example.has("wrong")) return;
  for (const std::string& key : example.at("wrong").keys()) {
    const Values wrong = example.at("wrong").at(key).flat();
    for (const auto& [figure, got] : figures) {
      if (!example.at("expected").has(figure) || got.size() != wrong.size()) continue;
      if (figures.contains(key) && figure != key) continue;  // of the same name: that one alone
      const bool is_expected = least_magnitude_difference(example.at("expected").at(figure).flat(), wrong) == 0;
      const bool came_out = least_magnitude_difference(got, wrong) == 0;
      c.equal(came_out && !is_expected, 0, [&] { return fmt::format("wrong.{}: {} came out as it", key, figure); });
    }
  }
}

OracleRow check_example(const Backends& on, const OracleEntry& example) {
  const std::string item = "examples/" + example.text("id");
  const Question* question = find_question(example.at("inputs"));
  Comparison c;
  std::string unanswered = question ? "" : "no question that is known here: ";
  if (!question)
    for (const std::string& key : example.at("inputs").keys()) unanswered += key + " ";
  const Figures figures = question ? question->answer(on, example.at("inputs")) : Figures{};
  for (const std::string& key : example.at("expected").keys()) {
    if (figures.contains(key))
      c.near(figures.at(key), example.at("expected").at(key).flat(), {.relative = kRelative}, "expected." + key);
    else if (question)
      unanswered += "no figure '" + key + "' here";
  }
  compare_wrong(example, figures, c);
  OracleRow row = c.row(kGroup, item, unanswered);
  if (!unanswered.empty() && row.verdict != OracleVerdict::fail) row.verdict = OracleVerdict::skipped;
  if (!unanswered.empty()) row.detail = unanswered;
  return row;
}

}  // namespace

void check_scaling_examples(OracleSession& session) {
  const auto file = session.open(kGroup, "examples");
  if (!file) return;
  for (const OracleEntry& example : OracleEntry(*file).items("examples"))
    session.add(check_example({.reference = session.reference(), .device = session.device()}, example));
}

}  // namespace mixroof
