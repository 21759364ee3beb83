#include "harness/observe/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace mixroof {
namespace {

constexpr std::size_t kMostFindings = 3;
// From this share of gradient values on, their missing bits are what a gradient error comes from.
constexpr double kSubnormalExplains = 0.1;

struct Finding {
  VerdictKind kind;
  std::string text;
};

std::string percent(double fraction) {
  return fraction < 10 ? fmt::format("{:.3g} %", 100 * fraction) : fmt::format("{:.0f} %", 100 * fraction);
}

class Judge {
 public:
  Judge(const NumericFigures& figures, const Recipe& recipe, const NumericsLimits& limits)
      : f_(figures), r_(recipe), l_(limits) {}

  Verdict verdict() {
    // In this order: causes before what came of them.
    judge_second_moments();
    judge_overflow();
    judge_underflow();
    judge_absorption();
    judge_saturation();
    judge_gradient();
    judge_update();
    judge_loss();
    std::stable_sort(findings_.begin(), findings_.end(),
                     [](const Finding& a, const Finding& b) { return a.kind > b.kind; });
    Verdict verdict;
    for (std::size_t i = 0; i < std::min(findings_.size(), kMostFindings); ++i)
      verdict.reason += (i == 0 ? "" : "; ") + findings_[i].text;
    if (!findings_.empty()) verdict.kind = findings_.front().kind;
    return verdict;
  }

 private:
  void find(VerdictKind kind, std::string text) { findings_.push_back({kind, std::move(text)}); }
  /// Beyond its limit; NaN is.
  static bool is_beyond(const std::optional<double>& figure, double limit) { return figure && !(*figure <= limit); }
  static VerdictKind graver(bool diverged) { return diverged ? VerdictKind::diverged : VerdictKind::degraded; }

  void judge_overflow() {
    if (f_.state_nonfinite)
      find(VerdictKind::diverged, "overflow: an update left a parameter or moment that is not finite");
    else if (f_.scale_exhausted)
      find(VerdictKind::diverged, "overflow: gradients were not finite at the floor of the loss scale");
    else if (f_.updates > 0 && f_.overflows == f_.updates)
      find(VerdictKind::diverged, fmt::format("overflow: gradients were not finite in any of {} updates", f_.updates));
    else if (f_.loss_nonfinite)
      find(VerdictKind::diverged, "overflow: the loss is not finite in the last quarter of the updates");
    else if (f_.last_quarter_overflows > 1 && !(static_cast<double>(f_.last_quarter_overflows) <=
                                                l_.overflow_fraction * static_cast<double>(f_.last_quarter)))
      find(VerdictKind::degraded,
           fmt::format("overflow: {} of the last {} updates were skipped (limit {})", f_.last_quarter_overflows,
                       f_.last_quarter, percent(l_.overflow_fraction)));
  }

  void judge_second_moments() {
    if (!is_beyond(f_.moment2_underflow, l_.underflow_fraction)) return;
    // A second moment of 0 forgets: the root of the newest gradient alone divides, or eps does, so that steps grow.
    const bool explodes = is_beyond(f_.update_rms_over_lr, f_.adamw_step_bound);
    const std::string effect = explodes ? fmt::format(
                                              ", so that updates explode instead of vanishing: {:.3g} learning rates "
                                              "(rms), AdamW's bound is {:.3g}",
                                              *f_.update_rms_over_lr, f_.adamw_step_bound)
                                        : "";
    find(graver(explodes),
         fmt::format("underflow: {} of the second moments are 0 in {} and not in fp32 (limit {}){}",
                     percent(*f_.moment2_underflow), name(r_.moments), percent(l_.underflow_fraction), effect));
  }

  void judge_underflow() {
    if (is_beyond(f_.underflow_felt, l_.underflow_fraction))
      find(VerdictKind::degraded,
           fmt::format(
               "underflow: {} of the weight gradients are 0 in {} though fp32 has values that AdamW feels (limit {})",
               percent(*f_.underflow_felt), name(r_.grads), percent(l_.underflow_fraction)));
  }

  void judge_absorption() {
    if (is_beyond(f_.absorbed, l_.absorbed_update_fraction))
      find(VerdictKind::degraded,
           fmt::format("absorption: {} of the updates are lost to {} parameters, less than half a spacing (limit {})",
                       percent(*f_.absorbed), name(r_.master.value_or(r_.params)),
                       percent(l_.absorbed_update_fraction)));
  }

  void judge_saturation() {
    if (is_beyond(f_.saturated, l_.saturated_fraction))
      find(VerdictKind::degraded, fmt::format("overflow: {} of the FP8 values saturate (limit {})",
                                              percent(*f_.saturated), percent(l_.saturated_fraction)));
  }

  void judge_gradient() {
    const bool is_far = is_beyond(f_.grad_rel_l2, l_.grad_rel_l2);
    const bool is_turned = f_.grad_cosine && !(*f_.grad_cosine >= l_.grad_cosine);
    if (!is_far && !is_turned) return;
    const VerdictKind kind = graver(is_beyond(f_.grad_rel_l2, l_.diverged_grad_rel_l2) ||
                                    (f_.grad_cosine && !(*f_.grad_cosine >= l_.diverged_grad_cosine)));
    const std::string cause =
        f_.subnormal && *f_.subnormal > kSubnormalExplains
            ? fmt::format("underflow: {} of the gradient values lie below {}'s least normal number and lose bits, ",
                          percent(*f_.subnormal), name(r_.between))
            : "divergence from fp32: ";
    find(kind,
         cause +
             (is_far ? fmt::format("the gradient is {:.3g} off (rel L2, limit {:.3g})", *f_.grad_rel_l2, l_.grad_rel_l2)
                     : fmt::format("the gradient's cosine is {:.4g} (limit {:.4g})", *f_.grad_cosine, l_.grad_cosine)));
  }

  void judge_update() {
    if (is_beyond(f_.update_rel_l2, l_.update_rel_l2))
      find(graver(is_beyond(f_.update_rel_l2, l_.diverged_update_rel_l2)),
           fmt::format("divergence from fp32: one update is {:.3g} off (rel L2, limit {:.3g})", *f_.update_rel_l2,
                       l_.update_rel_l2));
  }

  void judge_loss() {
    if (f_.loss_nonfinite || !is_beyond(f_.loss_rel_diff, l_.loss_rel_diff)) return;
    std::string lag;
    if (f_.overflows > 0) {
      lag = fmt::format(", {} of {} updates were skipped", f_.overflows, f_.updates);
      if (f_.loss_rel_diff_applied)
        lag += fmt::format(" and at equal applied updates it is {} off", percent(*f_.loss_rel_diff_applied));
    }
    // A recipe that lags by the updates it skipped has lost time, not its way.
    const bool has_lost_its_way = is_beyond(f_.loss_rel_diff, l_.diverged_loss_rel_diff) &&
                                  !(f_.loss_rel_diff_applied && *f_.loss_rel_diff_applied <= l_.diverged_loss_rel_diff);
    find(graver(has_lost_its_way),
         fmt::format("divergence from fp32: the loss of the last quarter is {} off (limit {}){}",
                     percent(*f_.loss_rel_diff), percent(l_.loss_rel_diff), lag));
  }

  const NumericFigures& f_;
  const Recipe& r_;
  const NumericsLimits& l_;
  std::vector<Finding> findings_;
};

}  // namespace

std::string_view name(VerdictKind kind) {
  switch (kind) {
    case VerdictKind::ok:
      return "ok";
    case VerdictKind::degraded:
      return "degraded";
    case VerdictKind::diverged:
      return "diverged";
  }
  return "diverged";
}

Verdict judge(const NumericFigures& figures, const Recipe& recipe, const NumericsLimits& limits) {
  return Judge(figures, recipe, limits).verdict();
}

}  // namespace mixroof
