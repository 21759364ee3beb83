#include "harness/cli/explain/tensor_update.h"

#include "kernels/grad_check/grad_check.h"

namespace mixroof::cli {

TensorUpdate::TensorUpdate(Workbench& bench, const UpdateSetup& setup, const Values& start)
    : weights(start),
      master(setup.master ? start : Values{}),
      moment1(start.size()),
      moment2(start.size()),
      control(kControlSlots),
      bench_(bench),
      setup_(setup) {
  setup_.update.beta1 = setup.optimizer.beta1;
  setup_.update.beta2 = setup.optimizer.beta2;
  slot(control.data(), Slot::loss_scale) = setup.loss_scale;
}

Problem TensorUpdate::optimizer_problem() const {
  return adamw_problem(static_cast<std::int64_t>(weights.size()), Format::fp32, setup_.weights, setup_.master,
                       setup_.moments, setup_.optimizer);
}

std::vector<Values> TensorUpdate::optimizer_operands(const Values& grad) const {
  if (setup_.master) return {grad, weights, master, moment1, moment2, control};
  return {grad, weights, moment1, moment2, control};
}

void TensorUpdate::window(const Values& scaled_grad, double effective_tokens) {
  slot(control.data(), Slot::effective_tokens) = effective_tokens;
  const auto count = static_cast<std::int64_t>(scaled_grad.size());
  control = bench_.run(grad_check_problem(count, Format::fp32, /*accumulate=*/false), {scaled_grad, control})[1];
  control = bench_.run(decide_problem(setup_.update), {control})[0];
  std::vector<Values> after = bench_.run(optimizer_problem(), optimizer_operands(scaled_grad));
  const auto take_last = [&] {
    Values last = std::move(after.back());
    after.pop_back();
    return last;
  };
  control = bench_.run(advance_problem(setup_.update), {take_last()})[0];
  moment2 = take_last();
  moment1 = take_last();
  if (setup_.master) master = take_last();
  // A skipped update writes no parameters, so that those of a master are not read back.
  if (!setup_.master || (*this)[Slot::apply] != 0) weights = take_last();
}

}  // namespace mixroof::cli
