// The update's decisions on the CPU: the rules themselves, on the calling thread.
#include "kernels/implementation.h"
#include "kernels/update_control/rules.h"

namespace mixroof {
namespace {

class UpdateControlPlan : public Plan {
 public:
  explicit UpdateControlPlan(const Problem& problem)
      : constants_(update_constants(problem)), rule_(problem.variant == "decide" ? decide : advance) {}

  void run(const Launch& launch) const override { rule_(constants_, static_cast<double*>(launch.operands[0])); }
  std::string implementation() const override { return "mixroof scalar"; }

 private:
  UpdateConstants constants_;
  void (*rule_)(const UpdateConstants& constants, double* control);
};

}  // namespace

std::span<const Implementation> update_control_cpu() {
  static constexpr Implementation kTable[] = {
      {"update_control", "cpu", "mixroof", supports_all, prepare_plan<UpdateControlPlan>}};
  return kTable;
}

}  // namespace mixroof
