#include "harness/oracle/gpt_run.h"

#include <fmt/format.h>

#include <limits>

namespace mixroof {
namespace {

/// Reads activations of the forward pass as they are written, until the logits are there.
class ActivationWatch : public OpObserver {
 public:
  ActivationWatch(const Execution& run, std::map<std::string, std::vector<double>>& into) : run_(run), into_(into) {}
  void before(const Op&) override {}
  void after(const Op& op) override {
    if (into_.contains("logits") || op.phase != Phase::forward) return;
    const Problem& p = op.problem;
    const TensorId last = op.operands.back().tensor;
    if (p.kernel == "embedding") {
      into_["embedding"] = run_.read(last);
    } else if (p.kernel == "residual") {  // two a layer: after attention, after the MLP
      into_[fmt::format("{}.after_{}", adds_ / 2, adds_ % 2 == 0 ? "attention" : "mlp")] = run_.read(last);
      ++adds_;
    } else if (p.kernel == "norm") {  // each later one replaces it
      into_["final_norm"] = run_.read(op.operands[p.variant == "rms_forward" ? 2 : 3].tensor);
    } else if (last == run_.program().logits) {
      into_["logits"] = run_.read(last);
    }
  }

 private:
  const Execution& run_;
  std::map<std::string, std::vector<double>>& into_;
  int adds_ = 0;
};

class GptRun {
 public:
  GptRun(const OracleModel& model, const OracleVariant& variant, const Recipe& recipe, Backend& backend,
         double loss_scale)
      : model_(model),
        run_(lower(model.model(), recipe, variant.batch, backend.target(), with_fixed_scale(variant.options)), backend,
             Placement::arena) {
    run_.initialize(variant.parameters, loss_scale);
  }

  /// Runs a window and puts everything but FP8 scales and histories back.
  void rehearse(const Window& window) {
    const Program& program = run_.program();
    std::vector<TensorId> kept = {program.control};
    for (const Program::Parameter& p : program.parameters)
      for (const TensorId id : {p.param, p.master, p.moment1, p.moment2})
        if (id >= 0) kept.push_back(id);
    TensorValues before;
    for (const TensorId id : kept) before.push_back(run_.read(id));
    run_.run_update(window);
    for (std::size_t i = 0; i < kept.size(); ++i) run_.write(kept[i], before[i]);
  }

  UpdateOutcome update(const Window& window, OpObserver* observer = nullptr) {
    run_.set_observer(observer);
    run_.run_update(window);
    run_.set_observer(nullptr);
    return run_.outcome();
  }

  TensorValues gradients(double loss_scale) const {
    TensorValues values = read([](const Program::Parameter& p) { return p.grad; });
    for (std::vector<double>& tensor : values)
      for (double& value : tensor) value /= loss_scale;
    return values;
  }

  GptState state() const {
    return {.params = read([](const Program::Parameter& p) { return p.master >= 0 ? p.master : p.param; }),
            .moment1 = read([](const Program::Parameter& p) { return p.moment1; }),
            .moment2 = read([](const Program::Parameter& p) { return p.moment2; })};
  }

  const Execution& execution() const { return run_; }

 private:
  static LowerOptions with_fixed_scale(LowerOptions options) {
    options.dynamic_scale = false;
    return options;
  }

  template <typename Which>
  TensorValues read(Which which) const {
    TensorValues all;
    for (std::size_t p = 0; p < model_.parts().size(); ++p) {
      const std::vector<double> whole = run_.read(which(run_.program().parameters[p]));
      for (const OraclePart& part : model_.parts()[p])
        all.emplace_back(whole.begin() + part.offset, whole.begin() + part.offset + part.count);
    }
    return all;
  }

  const OracleModel& model_;
  Execution run_;
};

}  // namespace

std::vector<GptTensor> gpt_tensors(const OracleModel& model) {
  const std::vector<ParameterSpec> specs = parameter_specs(model.model());
  std::vector<GptTensor> tensors;
  for (std::size_t p = 0; p < specs.size(); ++p)
    for (const OraclePart& part : model.parts()[p])
      tensors.push_back({part.name, specs[p].is_matrix && specs[p].layer >= 0});
  return tensors;
}

GptResult run_gpt(const OracleModel& model, const OracleVariant& variant, const Recipe& recipe, Backend& backend,
                  const GptRunOptions& options) {
  GptRun run(model, variant, recipe, backend, options.loss_scale);
  GptResult result;
  ActivationWatch watch(run.execution(), result.activations);
  for (std::size_t u = 0; u < variant.windows.size(); ++u) {
    if (options.rehearse) run.rehearse(variant.windows[u]);
    const UpdateOutcome outcome = run.update(variant.windows[u], options.activations && u == 0 ? &watch : nullptr);
    result.outcomes.push_back(outcome);
    if (u == 0) result.grads = run.gradients(outcome.loss_scale_used);
    const auto done = static_cast<std::int64_t>(u) + 1;
    if (options.states.contains(done)) result.after[done] = run.state();
  }
  if (options.evaluate_after != static_cast<std::int64_t>(variant.windows.size())) return result;
  // An update's loss is that of the parameters before it.
  if (options.rehearse) run.rehearse(variant.windows.front());
  result.first_window_loss_after[options.evaluate_after] = run.update(variant.windows.front()).loss;
  return result;
}

}  // namespace mixroof
