#include "harness/observe/update_comparison.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "harness/observe/reference_record.h"
#include "kernels/adamw/adamw.h"
#include "kernels/cross_entropy/cross_entropy.h"

namespace mixroof {
namespace {

const Tensor& tensor_of(const Program& program, TensorId id) { return program.tensors[static_cast<std::size_t>(id)]; }

bool is_finite(std::span<const double> values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
}

/// An output's values. `whole` holds the tensor they are a part of.
std::span<const double> values_of(const Execution& execution, const OpOutput& output, std::vector<double>& whole) {
  whole = execution.read(output.tensor);
  return std::span(whole).subspan(static_cast<std::size_t>(output.offset), static_cast<std::size_t>(output.count));
}

/// The sums of values · factor against a sparse reference.
DifferenceSums differences(std::span<const double> values, double factor, const SparseValues& reference) {
  DifferenceSums sums;
  const auto stride = static_cast<std::size_t>(reference.stride);
  for (std::size_t i = 0; i < reference.values.size(); ++i)
    sums.add(values[i * stride] * factor, static_cast<double>(reference.values[i]), static_cast<double>(stride));
  return sums;
}

ZeroCounts zero_counts(std::span<const double> values, const SparseValues& reference, double felt_from) {
  ZeroCounts zeros;
  const auto stride = static_cast<std::size_t>(reference.stride);
  for (std::size_t i = 0; i < reference.values.size(); ++i)
    zeros.add(values[i * stride], static_cast<double>(reference.values[i]), felt_from, static_cast<double>(stride));
  return zeros;
}

/// A tensor's step against FP32's where the first moment is not lost in rounding noise: AdamW makes a step as large as
/// the others of a moment that is zero but for rounding (the key's bias, whose gradient is exactly zero in theory).
DifferenceSums clear_step_differences(std::span<const double> step, const RecordedUpdate& reference) {
  double square = 0;
  for (const float m : reference.moment1.values) square += static_cast<double>(m) * static_cast<double>(m);
  const double clear =
      0.1 * std::sqrt(square / static_cast<double>(std::max<std::size_t>(reference.moment1.values.size(), 1)));
  DifferenceSums sums;
  const auto stride = static_cast<std::size_t>(reference.step.stride);
  for (std::size_t i = 0; i < reference.step.values.size(); ++i)
    if (std::fabs(static_cast<double>(reference.moment1.values[i])) >= clear)
      sums.add(step[i * stride], static_cast<double>(reference.step.values[i]));
  return sums;
}

class Comparator : public OpObserver {
 public:
  Comparator(const Execution& recipe, const ReferenceRecord& reference, const ComparisonOptions& options,
             UpdateComparison& result)
      : execution_(recipe),
        program_(recipe.program()),
        locator_(program_),
        reference_(reference),
        options_(options),
        result_(result) {
    locator_.start_update(result.update);
  }

  void before(const Op& op) override {
    if (options_.intruder != nullptr) options_.intruder->before(op);
    locator_.enter(op);
    if (const Program::Parameter* parameter = optimized_parameter(program_, op)) look_at_gradient(*parameter);
  }

  void after(const Op& op) override {
    if (options_.intruder != nullptr) options_.intruder->after(op);
    if (const Program::Parameter* parameter = optimized_parameter(program_, op)) {
      look_at_update(op, *parameter);
      return;
    }
    std::vector<double> whole;
    for (const OpOutput& output : number_outputs(program_, op))
      look_at_output(op, output, values_of(execution_, output, whole));
  }

  void finish() {
    for (auto& [key, evidence] : tensors_) result_.tensors.push_back(std::move(evidence));
    if (gradient_values_ > 0)
      result_.subnormal_fraction = static_cast<double>(subnormal_) / static_cast<double>(gradient_values_);
  }

 private:
  /// Whether an output carries the loss scale. The loss puts its gradient in the logits' place, in the forward phase.
  bool is_gradient(const Op& op, TensorId output) const {
    if (op.problem.kernel == cross_entropy_kernel().name()) return output == program_.logits;
    return op.phase == Phase::backward && !op.recompute;
  }

  TensorEvidence& evidence(const std::string& name, Phase phase) {
    TensorEvidence& row = tensors_[{static_cast<int>(phase), name}];
    row.name = name;
    row.phase = phase;
    return row;
  }

  void note_nonfinite(const Op& op, const std::string& tensor, std::span<const double> values) {
    if (!result_.first_nonfinite && !is_finite(values)) result_.first_nonfinite = locator_.place(op, tensor);
  }

  void note_distance(const Op& op, const std::string& tensor, double rel_l2, double limit) {
    // Written so that NaN is a divergence.
    if (!result_.first_divergence && !(rel_l2 <= limit))
      result_.first_divergence = {.place = locator_.place(op, tensor), .rel_l2 = rel_l2, .limit = limit};
  }

  void look_at_output(const Op& op, const OpOutput& output, std::span<const double> values) {
    const Tensor& tensor = tensor_of(program_, output.tensor);
    note_nonfinite(op, tensor.name, values);
    if (op.recompute) return;  // the same values again
    const bool is_scaled = is_gradient(op, output.tensor);
    const SparseValues* reference = reference_.find(locator_.micro_batch(), op.name, tensor.name);
    if (reference != nullptr)
      note_distance(op, tensor.name, differences(values, is_scaled ? 1 / result_.loss_scale : 1, *reference).rel_l2(),
                    options_.limits.tensor_rel_l2);
    if (tensor.tensor_class == TensorClass::grad) return;  // its row is made of the whole window's gradient
    TensorEvidence& row = evidence(tensor.name, is_scaled ? Phase::backward : op.phase);
    ValueStats stats;
    stats.add(values, tensor.format);
    add(row, stats);
    if (!is_scaled || reference == nullptr) return;
    count_subnormal(stats);
    const ZeroCounts zeros = zero_counts(values, *reference, 0);
    add(row, zeros);
    result_.activation_zeros.add(zeros);
  }

  void look_at_gradient(const Program::Parameter& parameter) {
    const Tensor& tensor = tensor_of(program_, parameter.grad);
    const std::vector<double> grad = execution_.read(parameter.grad);
    const RecordedUpdate& reference = reference_.update_of(parameter.name);
    const DifferenceSums sums = differences(grad, 1 / result_.loss_scale, reference.grad);
    result_.grad.add(sums);
    if (result_.worst_tensor.empty() || !(sums.rel_l2() <= result_.worst_rel_l2)) {
      result_.worst_tensor = parameter.name;
      result_.worst_rel_l2 = sums.rel_l2();
    }
    TensorEvidence& row = evidence(tensor.name, Phase::backward);
    ValueStats stats;
    stats.add(grad, tensor.format);
    add(row, stats);
    count_subnormal(stats);
    const ZeroCounts zeros = zero_counts(grad, reference.grad, eps_ / reference.grad_factor);
    add(row, zeros);
    result_.grad_zeros.add(zeros);
    before_update_ = execution_.read(state_of(parameter));
  }

  void look_at_update(const Op& op, const Program::Parameter& parameter) {
    const std::vector<double> control = execution_.read(program_.control);
    if (slot(control.data(), Slot::apply) == 0) return;
    const std::vector<double> after = execution_.read(state_of(parameter)),
                              moment1 = execution_.read(parameter.moment1),
                              moment2 = execution_.read(parameter.moment2);
    count_absorbed(op, control, after, moment1, moment2);
    std::vector<double> step(after.size());
    // In the precision that the reference is kept in, so that equal steps are equal.
    for (std::size_t i = 0; i < step.size(); ++i) step[i] = static_cast<float>(after[i] - before_update_[i]);
    measure_steps(op, step, slot(control.data(), Slot::learning_rate));

    const RecordedUpdate& reference = reference_.update_of(parameter.name);
    note_moment(op, parameter.moment1, moment1, reference.moment1, result_.moments[0]);
    note_moment(op, parameter.moment2, moment2, reference.moment2, result_.moments[1]);
    const ZeroCounts zeros = zero_counts(moment2, reference.moment2, 0);
    result_.moment2_zeros.add(zeros);
    add(evidence(tensor_of(program_, parameter.moment2).name, Phase::update), zeros);
    const std::string& name = tensor_of(program_, state_of(parameter)).name;
    note_nonfinite(op, name, after);
    add_stats(state_of(parameter), after);
    result_.step.add(differences(step, 1, reference.step));
    note_distance(op, name, clear_step_differences(step, reference).rel_l2(), options_.limits.tensor_update_rel_l2);
  }

  void note_moment(const Op& op, TensorId id, std::span<const double> moment, const SparseValues& reference,
                   DifferenceSums& all) {
    const std::string& name = tensor_of(program_, id).name;
    note_nonfinite(op, name, moment);
    add_stats(id, moment);
    const DifferenceSums sums = differences(moment, 1, reference);
    all.add(sums);
    note_distance(op, name, sums.rel_l2(), options_.limits.tensor_rel_l2);
  }

  void count_absorbed(const Op& op, const std::vector<double>& control, std::span<const double> after,
                      std::span<const double> moment1, std::span<const double> moment2) {
    const AdamwScalars scalars{.learning_rate = slot(control.data(), Slot::learning_rate),
                               .weight_decay = op.problem.constant("weight_decay"),
                               .eps = op.problem.constant("eps"),
                               .bias_correction1 = slot(control.data(), Slot::bias_correction1),
                               .bias_correction2 = slot(control.data(), Slot::bias_correction2)};
    for (std::size_t i = 0; i < after.size(); ++i)
      result_.absorbed.add(exact_adamw_update(scalars, before_update_[i], moment1[i], moment2[i]), before_update_[i],
                           after[i]);
  }

  void measure_steps(const Op& op, std::span<const double> step, double learning_rate) {
    result_.step_bound = adamw_step_bound(op.problem.constant("beta1"), op.problem.constant("beta2"));
    result_.steps += static_cast<std::int64_t>(step.size());
    for (const double s : step) {
      const double rates = std::fabs(s) / learning_rate;
      result_.step_square_sum += rates * rates;
      result_.largest_step = std::max(result_.largest_step, rates);
    }
  }

  /// What the optimizer updates.
  static TensorId state_of(const Program::Parameter& parameter) {
    return parameter.master >= 0 ? parameter.master : parameter.param;
  }

  void count_subnormal(const ValueStats& stats) {
    subnormal_ += stats.subnormal;
    gradient_values_ += stats.count;
  }

  static void add(TensorEvidence& row, const ValueStats& stats) {
    row.stats.count += stats.count;
    row.stats.zeros += stats.zeros;
    row.stats.nonfinite += stats.nonfinite;
    row.stats.subnormal += stats.subnormal;
    row.stats.min = std::min(row.stats.min, stats.min);
    row.stats.max = std::max(row.stats.max, stats.max);
  }
  static void add(TensorEvidence& row, const ZeroCounts& zeros) {
    if (!row.zeros) row.zeros.emplace();
    row.zeros->add(zeros);
  }
  void add_stats(TensorId id, std::span<const double> values) {
    const Tensor& tensor = tensor_of(program_, id);
    evidence(tensor.name, Phase::update).stats.add(values, tensor.format);
  }

  const Execution& execution_;
  const Program& program_;
  OpLocator locator_;
  const ReferenceRecord& reference_;
  const ComparisonOptions& options_;
  UpdateComparison& result_;
  const double eps_ = optimizer_eps(program_);
  std::map<std::pair<int, std::string>, TensorEvidence> tensors_;  // by phase, then name
  std::vector<double> before_update_;
  std::int64_t subnormal_ = 0, gradient_values_ = 0;

  static double optimizer_eps(const Program& program) {
    for (const Op& op : program.section(SectionKind::update))
      if (op.problem.kernel == adamw_kernel().name()) return op.problem.constant("eps");
    return 0;
  }
};

class NonfiniteFinder : public OpObserver {
 public:
  NonfiniteFinder(const Execution& execution, std::int64_t update)
      : execution_(execution), locator_(execution.program()) {
    locator_.start_update(update);
  }
  void before(const Op& op) override { locator_.enter(op); }
  void after(const Op& op) override {
    if (found) return;
    std::vector<double> whole;
    for (const OpOutput& output : number_outputs(execution_.program(), op))
      if (!found && !is_finite(values_of(execution_, output, whole)))
        found = locator_.place(op, tensor_of(execution_.program(), output.tensor).name);
  }

  std::optional<Place> found;

 private:
  const Execution& execution_;
  OpLocator locator_;
};

/// Watches while an update runs, and no longer.
void run_watched(Execution& execution, const Window& window, OpObserver& observer) {
  execution.set_observer(&observer);
  try {
    execution.run_update(window);
  } catch (...) {
    execution.set_observer(nullptr);
    throw;
  }
  execution.set_observer(nullptr);
}

std::set<std::string> tensor_names(const Program& program) {
  std::set<std::string> names;
  for (const Tensor& tensor : program.tensors) names.insert(tensor.name);
  return names;
}

}  // namespace

void take_over_state(const Execution& from, Execution& fp32) {
  for (std::size_t i = 0; i < fp32.program().parameters.size(); ++i) {
    const Program::Parameter &source = from.program().parameters[i], &to = fp32.program().parameters[i];
    fp32.write(to.param, from.read(source.master >= 0 ? source.master : source.param));
    fp32.write(to.moment1, from.read(source.moment1));
    fp32.write(to.moment2, from.read(source.moment2));
  }
  std::vector<double> control = from.read(from.program().control);
  slot(control.data(), Slot::loss_scale) = 1;
  fp32.write(fp32.program().control, control);
}

UpdateComparison compare_update(Execution& recipe, Execution& fp32, const Window& window,
                                const ComparisonOptions& options) {
  ReferenceRecord record(stride_that_fits(fp32.program(), options.record_bytes));
  take_over_state(recipe, fp32);
  ReferenceRecorder recorder(fp32, tensor_names(recipe.program()), record);
  run_watched(fp32, window, recorder);

  UpdateComparison result;
  const UpdateOutcome before = recipe.outcome();
  result.update = before.attempted + 1;
  result.loss_scale = before.loss_scale;
  result.stride = record.stride();
  Comparator comparator(recipe, record, options, result);
  run_watched(recipe, window, comparator);
  comparator.finish();
  result.applied = recipe.outcome().applied;
  return result;
}

std::optional<Place> find_first_nonfinite(Execution& execution, const Window& window) {
  NonfiniteFinder finder(execution, execution.outcome().attempted + 1);
  run_watched(execution, window, finder);
  return finder.found;
}

}  // namespace mixroof
