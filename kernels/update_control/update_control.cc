// Cost, reference and error limit of the update's decisions; kernels/update_control/update_control.h is the contract.
#include "kernels/update_control/update_control.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/control.h"
#include "kernels/control_operand.h"
#include "kernels/update_control/rules.h"

namespace mixroof {
namespace {

constexpr std::int64_t kSlots = kControlSlots;

Problem control_problem(std::string_view variant, const UpdateConstants& c) {
  return {.kernel = "update_control",
          .variant = std::string(variant),
          .shape = {{"slots", kSlots}},
          .formats = {Format::fp64},
          .constants = {{"beta1", c.beta1},
                        {"beta2", c.beta2},
                        {"max_norm", c.max_norm},
                        {"learning_rate", c.learning_rate},
                        {"schedule", static_cast<double>(c.schedule)},
                        {"warmup", c.warmup},
                        {"decay_updates", c.decay_updates},
                        {"dynamic", c.dynamic_scale ? 1.0 : 0.0},
                        {"growth", c.growth},
                        {"backoff", c.backoff},
                        {"growth_interval", c.growth_interval},
                        {"floor", c.floor},
                        {"ceiling", c.ceiling}}};
}

class UpdateControlKernel : public Kernel {
 public:
  std::string_view name() const override { return "update_control"; }
  std::string_view summary() const override {
    return "apply or skip, clip, learning rate and loss scale, decided on the device";
  }
  CostCategory category() const override { return CostCategory::scaling_check; }

  std::vector<Operand> operands(const Problem&) const override { return {control_operand()}; }

  /// No FLOPs: a dozen scalar operations per update are decisions, not arithmetic that has a rate.
  Cost cost(const Problem& p) const override { return compulsory_bytes(p); }

  void reference(const Problem& p, std::span<const RefOperand> operands) const override {
    const UpdateConstants constants = update_constants(p);
    double* control = operands[0].data;
    if (p.variant == "decide")
      decide(constants, control);
    else
      advance(constants, control);
    if (double* magnitude = operands[0].magnitude; magnitude != nullptr && p.variant == "decide") {
      for (const Slot s : {Slot::grad_norm, Slot::clip_coefficient, Slot::grad_factor})
        slot(magnitude, s) = std::fabs(slot(control, s));
      // 1 - beta^n and the schedule subtract from 1: their yardstick is the 1.
      slot(magnitude, Slot::bias_correction1) = slot(magnitude, Slot::bias_correction2) = 1;
      slot(magnitude, Slot::learning_rate) = constants.learning_rate;
    }
  }

  /// Counters, decisions and the scale are exact. The few results of √, ÷, pow and cos may differ by the library that
  /// computes them: each of at most four operations within two units in the last place of double.
  double limit(const Problem&, std::size_t, double, double magnitude) const override {
    return 8 * facts(Format::fp64).epsilon * magnitude;
  }

  std::vector<Case> cases() const override {
    return {{"decide", {{"slots", kSlots}}}, {"advance", {{"slots", kSlots}}}};
  }

  /// Clipping at norm 1, and dynamic loss scaling where the recipe has it.
  std::optional<Problem> problem(const Recipe& recipe, const Case& c) const override {
    const UpdateConstants constants{.max_norm = 1.0, .dynamic_scale = recipe.loss_scaling == LossScaling::dynamic};
    if (c.variant == "decide") return decide_problem(constants);
    if (c.variant == "advance") return advance_problem(constants);
    throw UsageError("update_control: unknown variant '" + c.variant + "'; give decide or advance");
  }
};

}  // namespace

UpdateConstants update_constants(const Problem& p) {
  return {.beta1 = p.constant("beta1"),
          .beta2 = p.constant("beta2"),
          .max_norm = p.constant("max_norm"),
          .learning_rate = p.constant("learning_rate"),
          .schedule = static_cast<Schedule>(static_cast<int>(p.constant("schedule"))),
          .warmup = p.constant("warmup"),
          .decay_updates = p.constant("decay_updates"),
          .dynamic_scale = p.constant("dynamic") != 0,
          .growth = p.constant("growth"),
          .backoff = p.constant("backoff"),
          .growth_interval = p.constant("growth_interval"),
          .floor = p.constant("floor"),
          .ceiling = p.constant("ceiling")};
}

double scheduled_learning_rate(const UpdateConstants& c, double applied) {
  if (applied <= c.warmup) return c.learning_rate * applied / c.warmup;
  if (c.schedule == Schedule::constant) return c.learning_rate;
  if (applied >= c.decay_updates) return 0;
  const double progress = (applied - c.warmup) / (c.decay_updates - c.warmup);
  if (c.schedule == Schedule::linear) return c.learning_rate * (1 - progress);
  return c.learning_rate * (1 + std::cos(std::numbers::pi * progress)) / 2;
}

void decide(const UpdateConstants& c, double* control) {
  const double scale = slot(control, Slot::loss_scale);
  const bool apply = slot(control, Slot::effective_tokens) > 0 && slot(control, Slot::found_inf) == 0;
  const double norm = std::sqrt(slot(control, Slot::grad_square_sum)) / scale;
  const double clip = c.max_norm > 0 ? std::min(1.0, c.max_norm / norm) : 1.0;
  slot(control, Slot::apply) = apply;
  slot(control, Slot::scale_used) = scale;
  slot(control, Slot::grad_norm) = norm;
  slot(control, Slot::clip_coefficient) = clip;
  slot(control, Slot::grad_factor) = clip / scale;

  slot(control, Slot::updates_attempted) += 1;
  slot(control, Slot::tokens_consumed) += slot(control, Slot::effective_tokens);
  if (!apply) {
    slot(control, Slot::updates_skipped) += 1;
    return;
  }
  const double applied = slot(control, Slot::updates_applied) += 1;
  slot(control, Slot::bias_correction1) = 1 - std::pow(c.beta1, applied);
  slot(control, Slot::bias_correction2) = 1 - std::pow(c.beta2, applied);
  slot(control, Slot::learning_rate) = scheduled_learning_rate(c, applied);
}

namespace {

void back_off(const UpdateConstants& c, double* control) {
  double& scale = slot(control, Slot::loss_scale);
  slot(control, Slot::growth_tracker) = 0;
  if (scale <= c.floor) {
    slot(control, Slot::scale_exhausted) = 1;
    return;
  }
  scale = std::max<double>(static_cast<float>(scale * c.backoff), c.floor);
  slot(control, Slot::backoffs) += 1;
}

void count_towards_growth(const UpdateConstants& c, double* control) {
  double& tracker = slot(control, Slot::growth_tracker);
  if (++tracker < c.growth_interval) return;
  tracker = 0;
  const double grown = static_cast<float>(slot(control, Slot::loss_scale) * c.growth);
  if (grown > c.ceiling) return;
  slot(control, Slot::loss_scale) = grown;
  slot(control, Slot::growths) += 1;
}

}  // namespace

void advance(const UpdateConstants& c, double* control) {
  // A window without effective tokens says nothing about the scale.
  if (c.dynamic_scale && slot(control, Slot::effective_tokens) > 0) {
    if (slot(control, Slot::found_inf) != 0)
      back_off(c, control);
    else if (slot(control, Slot::apply) != 0)
      count_towards_growth(c, control);
  }
  slot(control, Slot::found_inf) = 0;
}

Problem decide_problem(const UpdateConstants& constants) { return control_problem("decide", constants); }
Problem advance_problem(const UpdateConstants& constants) { return control_problem("advance", constants); }

const Kernel& update_control_kernel() {
  static const UpdateControlKernel kernel;
  return kernel;
}

}  // namespace mixroof
