#include "harness/measure/numerics_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mixroof {
namespace {

std::size_t quarter_of(std::size_t updates) { return std::max<std::size_t>(1, updates / 4); }

/// The worst of a figure over the compared updates: NaN before everything, then the largest (cosines: the smallest).
template <typename Figure>
std::optional<double> worst(const NumericEvidence* evidence, const Figure& figure, bool smallest = false) {
  std::optional<double> most;
  if (evidence == nullptr) return most;
  for (const UpdateComparison& comparison : evidence->comparisons) {
    const double value = figure(comparison);
    if (!most || std::isnan(value) || (smallest ? value < *most : value > *most)) most = value;
    if (std::isnan(*most)) break;
  }
  return most;
}

const UpdateComparison* with_worst_gradient(const NumericEvidence* evidence) {
  const UpdateComparison* found = nullptr;
  if (evidence == nullptr) return found;
  for (const UpdateComparison& comparison : evidence->comparisons)
    if (found == nullptr || !(comparison.worst_rel_l2 <= found->worst_rel_l2)) found = &comparison;
  return found;
}

std::optional<double> saturated_fraction(const NumericEvidence* evidence) {
  if (evidence == nullptr || !evidence->fp8 || evidence->fp8->quantized <= 0) return std::nullopt;
  return evidence->fp8->saturated / evidence->fp8->quantized;
}

std::optional<double> flushed_fraction(const NumericEvidence* evidence) {
  if (evidence == nullptr || !evidence->fp8 || evidence->fp8->quantized <= 0) return std::nullopt;
  return evidence->fp8->flushed / evidence->fp8->quantized;
}

Json place_json(const Place& place) {
  return {{"update", place.update},
          {"micro_batch", place.micro_batch > 0 ? Json(place.micro_batch) : Json(nullptr)},
          {"phase", name(place.phase)},
          {"layer", place.layer >= 0 ? Json(place.layer) : Json(nullptr)},
          {"op", place.op},
          {"tensor", place.tensor}};
}

Json first_divergence_json(const NumericEvidence& evidence) {
  for (const UpdateComparison& comparison : evidence.comparisons) {
    if (!comparison.first_divergence) continue;
    Json place = place_json(comparison.first_divergence->place);
    place["rel_l2"] = number_or_null(comparison.first_divergence->rel_l2);
    place["limit"] = comparison.first_divergence->limit;
    return place;
  }
  return nullptr;
}

Json comparison_json(const UpdateComparison& c) {
  return {{"update", c.update},
          {"loss_scale", c.loss_scale},
          {"every_nth_value", c.stride},
          {"grad_rel_l2", number_or_null(c.grad.rel_l2())},
          {"grad_cosine", number_or_null(c.grad.cosine())},
          {"worst_tensor", {{"name", c.worst_tensor}, {"rel_l2", number_or_null(c.worst_rel_l2)}}},
          {"update_rel_l2", number_or_null(c.step.rel_l2())},
          {"update_norm_ratio", number_or_null(c.step.norm_ratio())},
          {"update_rms_over_lr", number_or_null(c.step_rms())},
          {"update_largest_over_lr", number_or_null(c.largest_step)},
          {"adamw_step_bound", number_or_null(c.step_bound)},
          {"moment_rel_l2", {number_or_null(c.moments[0].rel_l2()), number_or_null(c.moments[1].rel_l2())}},
          {"underflow_fraction", c.grad_zeros.underflow_fraction()},
          {"underflow_felt_fraction", c.grad_zeros.felt_fraction()},
          {"activation_underflow_fraction", c.activation_zeros.underflow_fraction()},
          {"moment2_underflow_fraction", c.moment2_zeros.underflow_fraction()},
          {"subnormal_fraction", c.subnormal_fraction},
          {"absorbed_update_fraction", c.absorbed.fraction()}};
}

Json tensors_json(const UpdateComparison& comparison) {
  Json rows = Json::array();
  for (const TensorEvidence& t : comparison.tensors) {
    const auto count = static_cast<double>(t.stats.count);
    rows.push_back({{"name", t.name},
                    {"phase", name(t.phase)},
                    {"min", number_or_null(t.stats.min)},
                    {"max", number_or_null(t.stats.max)},
                    {"zeros", count > 0 ? Json(static_cast<double>(t.stats.zeros) / count) : Json(nullptr)},
                    {"nonfinite", t.stats.nonfinite},
                    {"underflow", t.zeros ? Json(t.zeros->underflow_fraction()) : Json(nullptr)}});
  }
  return rows;
}

Json scale_json(const StepRecord& step, double initial_scale) {
  if (step.recipe->loss_scaling != LossScaling::dynamic) return nullptr;
  return {{"initial", initial_scale},
          {"final", step.last.loss_scale},
          {"growths", step.last.growths},
          {"backoffs", step.last.backoffs},
          {"trajectory", step.loss_scale}};
}

Json limits_json(const NumericsLimits& l) {
  return {{"degraded",
           {{"grad_rel_l2", l.grad_rel_l2},
            {"grad_cosine", l.grad_cosine},
            {"update_rel_l2", l.update_rel_l2},
            {"underflow_felt_fraction", l.underflow_fraction},
            {"moment2_underflow_fraction", l.underflow_fraction},
            {"absorbed_update_fraction", l.absorbed_update_fraction},
            {"saturated_fraction", l.saturated_fraction},
            {"overflow_fraction_last_quarter", l.overflow_fraction},
            {"loss_rel_diff", l.loss_rel_diff}}},
          {"diverged",
           {{"grad_rel_l2", l.diverged_grad_rel_l2},
            {"grad_cosine", l.diverged_grad_cosine},
            {"update_rel_l2", l.diverged_update_rel_l2},
            {"loss_rel_diff", l.diverged_loss_rel_diff}}},
          {"first_divergence", {{"tensor_rel_l2", l.tensor_rel_l2}, {"tensor_update_rel_l2", l.tensor_update_rel_l2}}}};
}

void put_compared_figures(Json& numerics, const NumericFigures& figures, const NumericEvidence* evidence,
                          const std::string& reason) {
  set_number(numerics, "grad_rel_l2", figures.grad_rel_l2, reason);
  set_number(numerics, "grad_cosine", figures.grad_cosine, reason);
  const UpdateComparison* worst_gradient = with_worst_gradient(evidence);
  numerics["worst_tensor"] = nullptr;
  if (worst_gradient != nullptr)
    numerics["worst_tensor"] = {{"name", worst_gradient->worst_tensor},
                                {"rel_l2", number_or_null(worst_gradient->worst_rel_l2)},
                                {"update", worst_gradient->update}};
  set_number(numerics, "update_rel_l2", figures.update_rel_l2, reason);
  set_number(numerics, "update_rms_over_lr", figures.update_rms_over_lr, reason);
  set_number(numerics, "update_largest_over_lr",
             worst(evidence, [](const UpdateComparison& c) { return c.largest_step; }), reason);
  numerics["moment_rel_l2"] = nullptr;
  if (worst_gradient != nullptr) {
    const auto moment = [&](std::size_t i) {
      return number_or_null(*worst(evidence, [&](const UpdateComparison& c) { return c.moments[i].rel_l2(); }));
    };
    numerics["moment_rel_l2"] = {moment(0), moment(1)};
  }
  set_number(numerics, "underflow_fraction",
             worst(evidence, [](const UpdateComparison& c) { return c.grad_zeros.underflow_fraction(); }), reason);
  set_number(numerics, "underflow_felt_fraction", figures.underflow_felt, reason);
  set_number(numerics, "activation_underflow_fraction",
             worst(evidence, [](const UpdateComparison& c) { return c.activation_zeros.underflow_fraction(); }),
             reason);
  set_number(numerics, "moment2_underflow_fraction", figures.moment2_underflow, reason);
  set_number(numerics, "subnormal_fraction", figures.subnormal, reason);
  set_number(numerics, "absorbed_update_fraction", figures.absorbed, reason);
}

void put_places(Json& numerics, const NumericEvidence* evidence, const std::string& reason) {
  numerics["first_nonfinite"] = nullptr;
  numerics["first_divergence"] = nullptr;
  if (evidence == nullptr) {
    numerics["first_nonfinite_reason"] = numerics["first_divergence_reason"] = reason;
    return;
  }
  if (evidence->first_nonfinite)
    numerics["first_nonfinite"] = place_json(*evidence->first_nonfinite);
  else if (!evidence->nonfinite_reason.empty())
    numerics["first_nonfinite_reason"] = evidence->nonfinite_reason;
  numerics["first_divergence"] = first_divergence_json(*evidence);
  if (evidence->comparisons.empty()) numerics["first_divergence_reason"] = reason;
}

void put_verdict(Json& numerics, const NumericFigures& figures, const Recipe& recipe, const NumericsLimits& limits,
                 bool was_compared, const std::string& reason) {
  const Verdict verdict = judge(figures, recipe, limits);
  // What went wrong is known without a comparison; that nothing did is not.
  const bool is_known = was_compared || verdict.kind != VerdictKind::ok;
  numerics["verdict"] = is_known ? Json(name(verdict.kind)) : Json(nullptr);
  if (!is_known)
    numerics["reason"] = "not judged: " + reason;
  else
    numerics["reason"] = verdict.reason.empty() ? Json(nullptr) : Json(verdict.reason);
}

}  // namespace

std::optional<double> late_loss_difference(const std::vector<double>& loss, const std::vector<double>& reference) {
  return late_loss_difference_at_equal_applied(loss, reference, {});
}

std::optional<double> late_loss_difference_at_equal_applied(const std::vector<double>& loss,
                                                            const std::vector<double>& reference,
                                                            const std::vector<std::size_t>& skipped) {
  const std::size_t updates = std::min(loss.size(), reference.size());
  if (updates == 0) return std::nullopt;
  double sum = 0, reference_sum = 0;
  for (std::size_t i = updates - quarter_of(updates); i < updates; ++i) {
    sum += loss[i];
    const auto lag = std::lower_bound(skipped.begin(), skipped.end(), i) - skipped.begin();
    reference_sum += reference[i - static_cast<std::size_t>(lag)];
  }
  return std::fabs(sum / reference_sum - 1);
}

NumericFigures figures_of(const StepRecord& step, const Trajectory& fp32, const NumericEvidence* evidence) {
  NumericFigures f;
  const std::size_t quarter = quarter_of(step.loss.size());
  f.updates = static_cast<std::int64_t>(step.loss.size());
  f.overflows = static_cast<std::int64_t>(step.overflowed.size());
  f.last_quarter = static_cast<std::int64_t>(quarter);
  f.last_quarter_overflows = std::count_if(step.overflowed.begin(), step.overflowed.end(), [&](std::int64_t update) {
    return update > step.last.attempted - f.last_quarter;
  });
  f.state_nonfinite = step.last.state_nonfinite;
  f.scale_exhausted = step.last.scale_exhausted;
  f.loss_nonfinite = std::any_of(step.loss.end() - static_cast<std::ptrdiff_t>(std::min(quarter, step.loss.size())),
                                 step.loss.end(), [](double loss) { return !std::isfinite(loss); });
  f.loss_rel_diff = late_loss_difference(step.loss, fp32.loss);
  const std::int64_t before = step.last.attempted - static_cast<std::int64_t>(step.loss.size());
  std::vector<std::size_t> skipped;
  for (const std::int64_t update : step.overflowed) skipped.push_back(static_cast<std::size_t>(update - before - 1));
  f.loss_rel_diff_applied = late_loss_difference_at_equal_applied(step.loss, fp32.loss, skipped);
  f.grad_rel_l2 = worst(evidence, [](const UpdateComparison& c) { return c.grad.rel_l2(); });
  f.grad_cosine = worst(
      evidence, [](const UpdateComparison& c) { return c.grad.cosine(); }, true);
  f.update_rel_l2 = worst(evidence, [](const UpdateComparison& c) { return c.step.rel_l2(); });
  f.update_rms_over_lr = worst(evidence, [](const UpdateComparison& c) { return c.step_rms(); });
  if (evidence != nullptr && !evidence->comparisons.empty())
    f.adamw_step_bound = evidence->comparisons.front().step_bound;
  f.underflow_felt = worst(evidence, [](const UpdateComparison& c) { return c.grad_zeros.felt_fraction(); });
  f.subnormal = worst(evidence, [](const UpdateComparison& c) { return c.subnormal_fraction; });
  f.moment2_underflow = worst(evidence, [](const UpdateComparison& c) { return c.moment2_zeros.underflow_fraction(); });
  f.absorbed = worst(evidence, [](const UpdateComparison& c) { return c.absorbed.fraction(); });
  f.saturated = saturated_fraction(evidence);
  return f;
}

Json numerics_json(const StepRecord& step, const Trajectory& fp32, const NumericEvidence* evidence,
                   double initial_scale, std::int64_t layers) {
  const NumericFigures figures = figures_of(step, fp32, evidence);
  const NumericsLimits limits = limits_for(*step.recipe, layers);
  const bool was_compared = evidence != nullptr && !evidence->comparisons.empty();
  std::string reason = "the run ended before its numerics pass";
  if (evidence != nullptr && !evidence->not_compared.empty()) reason = evidence->not_compared;

  Json numerics = {{"verdict", nullptr}, {"reason", nullptr}, {"loss", step.loss}};
  put_verdict(numerics, figures, *step.recipe, limits, was_compared, reason);
  numerics["loss_reference"] = fp32.loss.empty() ? Json(nullptr) : Json(fp32.loss);
  set_number(numerics, "loss_rel_diff", figures.loss_rel_diff, "fp32 was not run beside it, or a loss is not finite");
  set_number(numerics, "loss_rel_diff_applied", figures.loss_rel_diff_applied,
             "fp32 was not run beside it, or a loss is not finite");
  numerics["grad_norm"] = step.grad_norm;
  numerics["grad_norm_reference"] = fp32.grad_norm.empty() ? Json(nullptr) : Json(fp32.grad_norm);
  put_compared_figures(numerics, figures, evidence, was_compared ? "not a finite number" : reason);
  set_number(numerics, "saturated_fraction", figures.saturated,
             step.recipe->uses_fp8() ? reason : "the recipe has no FP8 tensors");
  set_number(numerics, "flushed_fraction", flushed_fraction(evidence),
             step.recipe->uses_fp8() ? reason : "the recipe has no FP8 tensors");
  numerics["overflow_count"] = figures.overflows;
  put_places(numerics, evidence, reason);
  numerics["scale"] = scale_json(step, initial_scale);
  numerics["limits"] = limits_json(limits);
  numerics["compared_updates"] = Json::array();
  numerics["tensors"] = Json::array();
  if (was_compared) {
    for (const UpdateComparison& comparison : evidence->comparisons)
      numerics["compared_updates"].push_back(comparison_json(comparison));
    numerics["tensors"] = tensors_json(evidence->comparisons.back());
  }
  if (evidence != nullptr && !evidence->not_compared.empty())
    numerics["compared_updates_reason"] = evidence->not_compared;
  return numerics;
}

}  // namespace mixroof
