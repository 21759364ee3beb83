#include "harness/oracle/scaling.h"

#include <fmt/format.h>

#include <bit>
#include <limits>

#include "harness/execute/kernel_run.h"
#include "kernels/adamw/adamw.h"
#include "kernels/grad_check/grad_check.h"

namespace mixroof {
namespace {

constexpr const char* kGroup = "scaling";

/// What a trace has recorded after one of its updates.
void compare_record(const OracleEntry& trace, std::size_t record, ControlLoop& loop, Comparison& c) {
  const auto equal = [&](const char* key, double got) {
    c.equal(got, trace.at(key).at(record).number(),
            fmt::format("{}[{}] (update {})", key, record, trace.at("record_after").at(record).whole()));
  };
  const double scale = loop[Slot::loss_scale];
  equal("scale", scale);
  equal("growth_tracker", loop[Slot::growth_tracker]);
  equal("skipped_total", loop[Slot::updates_skipped]);
  const double stored = static_cast<double>(trace.at("scale_bits").at(record).whole());
  c.equal(std::bit_cast<std::uint32_t>(static_cast<float>(scale)), stored, fmt::format("scale_bits[{}]", record));
  if (trace.has("skipped"))
    c.equal(loop[Slot::apply] == 0, trace.at("skipped").at(record).flag(), fmt::format("skipped[{}]", record));
}

void compare_totals(const OracleEntry& trace, ControlLoop& loop, Comparison& c) {
  const OracleEntry totals = trace.at("final");
  const auto equal = [&](const char* key, Slot s) {
    c.equal(loop[s], totals.number(key), std::string("final.") + key);
  };
  equal("scale", Slot::loss_scale);
  equal("growth_tracker", Slot::growth_tracker);
  equal("applied", Slot::updates_applied);
  equal("skipped", Slot::updates_skipped);
  equal("backoffs", Slot::backoffs);
  // A scale of 0, which only a scaler without a floor reaches, "grows" to 0.
  if (loop[Slot::loss_scale] != 0) equal("growths", Slot::growths);
  if (trace.has("ends_run")) c.equal(loop[Slot::scale_exhausted] != 0, trace.flag("ends_run"), "ends_run");
}

void compare_saved_state(const OracleEntry& trace, ControlLoop& loop, Comparison& c) {
  if (!trace.has("state_dict")) return;
  const OracleEntry saved = trace.at("state_dict");
  c.equal(loop[Slot::loss_scale], saved.number("scale"), "state_dict.scale");
  c.equal(loop[Slot::growth_tracker], saved.number("growth_tracker"), "state_dict.growth_tracker");
}

void check_traces(OracleSession& session) {
  const auto file = session.open(kGroup, "traces");
  if (!file) return;
  for (const OracleEntry& trace : OracleEntry(*file).items("traces")) {
    const std::string item = "traces/" + trace.text("name");
    session.begin(item);
    session.add(check_scale_trace(session.device(), trace).row(kGroup, item, session.device().facts().backend));
  }
}

// ---- clocks

/// One fp32 tensor through check, decision, optimizer and scale, as an update runs them.
struct ClockedUpdate {
  Backend& backend;
  AdamwConstants constants;
  ControlLoop loop;
  std::vector<double> param, m, v;

  void window(const std::vector<double>& scaled_grad, const OracleEntry& rate) {
    const auto count = static_cast<std::int64_t>(param.size());
    const Problem check = grad_check_problem(count, Format::fp32, false);
    loop.control() = run_on(backend, grad_check_kernel(), check, {scaled_grad, loop.control()})[1];
    loop.decide();
    // The folder's schedule (linear from the first update after the peak) is none of the product's: its rate is given.
    if (rate.is_number()) loop[Slot::learning_rate] = rate.number();
    const Problem adamw = adamw_problem(count, Format::fp32, Format::fp32, false, Format::fp32, constants);
    auto after = run_on(backend, adamw_kernel(), adamw, {scaled_grad, param, m, v, loop.control()});
    param = after[1];
    m = after[2];
    v = after[3];
    loop.control() = after[4];
    loop.advance();
  }
};

void compare_clocks(const OracleEntry& after, ClockedUpdate& update, Comparison& c) {
  const auto equal = [&](const char* key, Slot s) {
    c.equal(update.loop[s], after.number(key), after.key() + "." + key);
  };
  equal("attempted", Slot::updates_attempted);
  equal("applied", Slot::updates_applied);
  equal("skipped", Slot::updates_skipped);
  equal("tokens_consumed", Slot::tokens_consumed);
  equal("scale_used", Slot::scale_used);
  equal("scale_after", Slot::loss_scale);
  if (after.has("optimizer_step")) equal("optimizer_step", Slot::updates_applied);
  const auto near = [&](const char* key, const std::vector<double>& got) {
    c.near(got, after.numbers(key), {.relative = 1e-12}, after.key() + "." + key);
  };
  near("params", update.param);
  near("moment1", update.m);
  near("moment2", update.v);
}

void check_clocks(OracleSession& session) {
  const auto file = session.open(kGroup, "clocks");
  if (!file) return;
  const OracleEntry clocks(*file);
  const UpdateConstants constants{.beta1 = clocks.number("beta1"),
                                  .beta2 = clocks.number("beta2"),
                                  .learning_rate = clocks.number("base_lr"),
                                  .dynamic_scale = true,
                                  .growth = clocks.number("growth_factor"),
                                  .backoff = clocks.number("backoff_factor"),
                                  .growth_interval = clocks.number("growth_interval")};
  std::vector<double> start = clocks.numbers("params");
  const std::vector<double> zeros(start.size());
  ClockedUpdate update{.backend = session.reference(),
                       .constants = {.beta1 = constants.beta1,
                                     .beta2 = constants.beta2,
                                     .eps = clocks.number("eps"),
                                     .weight_decay = clocks.number("weight_decay")},
                       .loop = ControlLoop(session.reference(), constants, clocks.number("init_scale")),
                       .param = std::move(start),
                       .m = zeros,
                       .v = zeros};
  Comparison c;
  for (std::size_t u = 0; u < clocks.at("after").size(); ++u) {
    const OracleEntry after = clocks.at("after").at(u);
    std::vector<double> grad = clocks.at("unscaled_gradients").at(u).numbers();
    if (grad.size() != zeros.size()) clocks.at("unscaled_gradients").at(u).refuse("has another size than params");
    for (double& g : grad) g *= update.loop[Slot::loss_scale];
    if (clocks.at("found_inf").at(u).whole() != 0) grad.at(0) = std::numeric_limits<double>::infinity();
    update.loop[Slot::effective_tokens] = clocks.at("effective_tokens").at(u).number();
    update.window(grad, after.at("learning_rate_used"));
    compare_clocks(after, update, c);
  }
  session.add(c.row(kGroup, "clocks", "reference, double"));
}

}  // namespace

ControlLoop::ControlLoop(Backend& backend, const UpdateConstants& constants, double initial_scale)
    : backend_(backend),
      decide_problem_(decide_problem(constants)),
      advance_problem_(advance_problem(constants)),
      decide_(backend.prepare(decide_problem_)),
      advance_(backend.prepare(advance_problem_)),
      control_(kControlSlots, 0.0) {
  (*this)[Slot::loss_scale] = initial_scale;
}

void ControlLoop::run(const Problem& problem, const Plan& plan) {
  control_ = run_on(backend_, update_control_kernel(), problem, plan, {control_})[0];
}

void ControlLoop::decide() { run(decide_problem_, *decide_); }
void ControlLoop::advance() { run(advance_problem_, replaced_ != nullptr ? *replaced_ : *advance_); }

void ControlLoop::window(bool found_inf, double effective_tokens, double grad_square_sum) {
  (*this)[Slot::found_inf] = found_inf;
  (*this)[Slot::effective_tokens] = effective_tokens;
  (*this)[Slot::grad_square_sum] = grad_square_sum;
  decide();
  advance();
}

UpdateConstants constants_of_trace(const OracleEntry& trace) {
  return {.dynamic_scale = true,
          .growth = trace.number("growth_factor"),
          .backoff = trace.number("backoff_factor"),
          .growth_interval = trace.number("growth_interval"),
          .floor = trace.number_or("floor", 0.0),
          .ceiling = trace.number_or("ceiling", std::numeric_limits<float>::max())};
}

Comparison check_scale_trace(Backend& backend, const OracleEntry& trace, const Plan* advance) {
  const UpdateConstants constants = constants_of_trace(trace);
  const auto make_loop = [&](double initial_scale) {
    auto made = std::make_unique<ControlLoop>(backend, constants, initial_scale);
    if (advance != nullptr) made->replace_advance(*advance);
    return made;
  };
  Comparison c;
  std::unique_ptr<ControlLoop> loop = make_loop(trace.number("init_scale"));
  const std::vector<double> record_after = trace.numbers("record_after");
  const double reload_after = trace.number_or("reload_after", 0);
  std::size_t record = 0;
  double done = 0;
  for (const OracleEntry& part : trace.items("script"))
    for (std::int64_t i = 0; i < part.at(1).whole(); ++i) {
      loop->window(part.at(0).whole() != 0);
      if (++done == reload_after) {  // saved, and loaded into a scaler built with another scale
        compare_saved_state(trace, *loop, c);
        const std::vector<double> saved = loop->control();
        loop = make_loop(7.0);
        loop->control() = saved;
      }
      if (record < record_after.size() && record_after[record] == done) compare_record(trace, record++, *loop, c);
    }
  if (record != record_after.size()) trace.at("record_after").refuse("has an update that the script does not reach");
  compare_totals(trace, *loop, c);
  return c;
}

void check_scaling_group(OracleSession& session) {
  check_traces(session);
  check_clocks(session);
  check_scaling_examples(session);
}

}  // namespace mixroof
