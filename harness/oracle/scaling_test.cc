// The check of a loss scale's trace on defects that it must see: growth one update late; two backoffs for one window;
// the tracker kept over a backoff.
#include "harness/oracle/scaling.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "harness/execute/kernel_check.h"
#include "kernels/update_control/rules.h"

namespace mixroof {
namespace {

/// Growth interval 4, the updates ok ok ok bad ok ok ok ok bad ok (cases.md LS-3).
const nlohmann::json& pattern() {
  static const nlohmann::json trace =
      nlohmann::json::parse(R"({"name": "pattern", "init_scale": 65536.0, "growth_factor": 2.0,
    "backoff_factor": 0.5, "growth_interval": 4, "script": [[0, 3], [1, 1], [0, 4], [1, 1], [0, 1]],
    "record_after": [3, 4, 7, 8, 9, 10], "scale": [65536.0, 32768.0, 32768.0, 65536.0, 32768.0, 32768.0],
    "scale_bits": [1199570944, 1191182336, 1191182336, 1199570944, 1191182336, 1191182336],
    "growth_tracker": [3, 0, 3, 0, 0, 1], "skipped_total": [0, 1, 1, 1, 2, 2],
    "final": {"scale": 32768.0, "growth_tracker": 1, "applied": 8, "skipped": 2, "backoffs": 2, "growths": 1}})");
  return trace;
}

bool follows_with(void (*advance)(const UpdateConstants& constants, double* control)) {
  const OracleEntry trace(pattern(), "pattern");
  const UpdateConstants constants = constants_of_trace(trace);
  const MutantPlan plan([&](const Launch& launch) { advance(constants, static_cast<double*>(launch.operands[0])); });
  return check_scale_trace(*make_cpu_backend(1), trace, &plan).passes();
}

TEST(ScaleTrace, LS3_TheProduct_FollowsIt) {
  EXPECT_TRUE(check_scale_trace(*make_cpu_backend(1), OracleEntry(pattern(), "pattern")).passes());
}

TEST(ScaleTrace, TheMutantsHarness_PassesWithoutADefect) { EXPECT_TRUE(follows_with(advance)); }

TEST(ScaleTrace, Mutant_GrowthOneUpdateLate_IsCaught) {
  EXPECT_FALSE(follows_with([](const UpdateConstants& c, double* control) {
    UpdateConstants late = c;
    late.growth_interval += 1;
    advance(late, control);
  }));
}

TEST(ScaleTrace, Mutant_TwoBackoffsForOneWindow_IsCaught) {
  EXPECT_FALSE(follows_with([](const UpdateConstants& c, double* control) {
    const double found_inf = slot(control, Slot::found_inf);
    advance(c, control);
    slot(control, Slot::found_inf) = found_inf;
    if (found_inf != 0) advance(c, control);
  }));
}

TEST(ScaleTrace, Mutant_TrackerKeptOverABackoff_IsCaught) {
  EXPECT_FALSE(follows_with([](const UpdateConstants& c, double* control) {
    const double tracker = slot(control, Slot::growth_tracker);
    const bool overflow = slot(control, Slot::found_inf) != 0;
    advance(c, control);
    if (overflow) slot(control, Slot::growth_tracker) = tracker;
  }));
}

}  // namespace
}  // namespace mixroof
