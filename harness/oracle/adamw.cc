// Group adamw: the optimizer kernel after every update, in double on the reference backend and in fp32 on the device.
#include <fmt/format.h>

#include <algorithm>

#include "harness/execute/kernel_run.h"
#include "harness/oracle/scaling.h"
#include "kernels/adamw/adamw.h"

namespace mixroof {
namespace {

constexpr const char* kGroup = "adamw";
constexpr Tolerance kDouble{.relative = 1e-12, .of_largest = 1e-13};
constexpr Tolerance kFloat{.relative = 2e-6, .of_largest = 1e-6};

struct StoredCase {
  OracleEntry entry;
  const OracleFile& file;
  std::string name = entry.text("name");
  AdamwConstants constants{.beta1 = entry.number("beta1"),
                           .beta2 = entry.number("beta2"),
                           .eps = entry.number("eps"),
                           .weight_decay = entry.number("weight_decay")};
  std::vector<double> param0 = file.values(name + ".params0"), grads = file.values(name + ".grads");
  std::vector<double> skipped = entry.numbers("skipped_updates");

  std::int64_t updates() const { return entry.whole("updates"); }
  bool is_skipped(std::int64_t u) const {
    return std::find(skipped.begin(), skipped.end(), static_cast<double>(u)) != skipped.end();
  }
  double rate(std::int64_t u) const {
    return entry.has("lr_per_update") ? entry.at("lr_per_update").at(static_cast<std::size_t>(u)).number()
                                      : entry.number("lr");
  }
  /// Row `u` of an array of all updates.
  std::vector<double> row(const std::vector<double>& all, const std::string& array, std::int64_t u) const {
    const auto count = static_cast<std::int64_t>(param0.size());
    if (static_cast<std::int64_t>(all.size()) != count * updates())
      throw UsageError(fmt::format("{}: array '{}.{}' has {} values, expected {} updates of {}", file.path(), name,
                                   array, all.size(), updates(), count));
    return {all.begin() + u * count, all.begin() + (u + 1) * count};
  }
};

struct State {
  std::vector<double> param, m, v, control;
};

/// One update: the decision (with the learning rate and skip of the case) and the optimizer.
void run_update(Backend& backend, const StoredCase& c, std::int64_t u, State& state) {
  const UpdateConstants update{.beta1 = c.constants.beta1, .beta2 = c.constants.beta2, .learning_rate = c.rate(u)};
  ControlLoop loop(backend, update, 1);
  loop.control() = state.control;
  loop[Slot::found_inf] = c.is_skipped(u);
  loop[Slot::effective_tokens] = loop[Slot::grad_square_sum] = 1;
  loop.decide();
  const Problem problem = adamw_problem(static_cast<std::int64_t>(c.param0.size()), Format::fp32, Format::fp32, false,
                                        Format::fp32, c.constants);
  auto after = run_on(backend, adamw_kernel(), problem,
                      {c.row(c.grads, "grads", u), state.param, state.m, state.v, loop.control()});
  loop.control() = after[4];
  loop.advance();
  state = {.param = after[1], .m = after[2], .v = after[3], .control = loop.control()};
}

/// `suffix` is that of the stored arrays: "f64" or "f32".
void check_case(OracleSession& session, Backend& backend, const StoredCase& c, const std::string& suffix) {
  const bool is_double = suffix == "f64";
  const bool overflows = !is_double && !c.entry.flag("fp32_moment2_finite");
  const std::vector<double> zeros(c.param0.size());
  State state{.param = c.param0, .m = zeros, .v = zeros, .control = std::vector<double>(kControlSlots)};
  slot(state.control.data(), Slot::loss_scale) = 1;
  const std::string arrays[] = {"params_" + suffix, "moment1_" + suffix, "moment2_" + suffix};
  std::vector<std::vector<double>> expected;
  if (!overflows)
    for (const std::string& array : arrays) expected.push_back(c.file.values(c.name + "." + array));
  Comparison comparison;
  for (std::int64_t u = 0; u < c.updates(); ++u) {
    run_update(backend, c, u, state);
    comparison.equal(slot(state.control.data(), Slot::updates_applied),
                     c.entry.at("optimizer_step_after").at(static_cast<std::size_t>(u)).number(),
                     fmt::format("optimizer_step_after[{}]", u));
    if (overflows) continue;  // g² is infinite and the update vanishes: it must be reported
    const std::vector<double>* got[] = {&state.param, &state.m, &state.v};
    for (std::size_t i = 0; i < 3; ++i)
      comparison.near(*got[i], c.row(expected[i], arrays[i], u), is_double ? kDouble : kFloat,
                      fmt::format("{}.{} after update {}", c.name, arrays[i], u + 1));
  }
  comparison.equal(slot(state.control.data(), Slot::state_nonfinite) != 0, overflows,
                   "state that is not finite is reported");
  session.add(comparison.row(kGroup, fmt::format("{} {}", c.name, is_double ? "double" : "fp32"),
                             overflows ? "squares overflow fp32: the report alone" : backend.facts().backend));
}

}  // namespace

void check_adamw_group(OracleSession& session) {
  for (const std::string& manifest : session.manifests(kGroup)) {
    const auto file = session.open(kGroup, manifest);
    for (const OracleEntry& entry : OracleEntry(*file).items("cases")) {
      const StoredCase c{.entry = entry, .file = *file};
      session.begin("adamw " + c.name);
      check_case(session, session.reference(), c, "f64");
      check_case(session, session.device(), c, "f32");
    }
  }
}

}  // namespace mixroof
