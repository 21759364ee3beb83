#include "harness/measure/session.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/measure/ceilings.h"
#include "harness/measure/device_document.h"
#include "harness/result/write.h"
#include "kernels/registry.h"

namespace mixroof {
namespace {

// Shares of the budget. Steps come first among the long passes, so that a short budget still gives every recipe.
constexpr double kCeilingsShare = 0.10, kCeilingsMost = 9, kStepsShare = 0.50, kNumericsShare = 0.22, kAgainShare = 0.04, kAgainMost = 4;

}  // namespace

Session::Session(RunConfig config, const TokenData& data, Backend& backend, std::filesystem::path out, RunEvents events,
                 SessionServices services)
    : config_(std::move(config)), data_(data), backend_(backend), out_(std::move(out)), events_(std::move(events)),
      services_(std::move(services)), start_s_(steady_clock().now_s()) {}

double Session::seconds_left() const { return config_.budget_s - (steady_clock().now_s() - start_s_); }

Roofline Session::roofline() const { return Roofline(ceilings_, memory_levels(backend_.facts())); }

RunStatus Session::run() {
  if (services_.describe) services_.describe(document_);
  document_.set("device", device_json(backend_.facts(), probe_arithmetic(backend_)));
  put_workload();
  checkpoint();
  if (config_.measure_ceilings) measure_ceilings(std::min(kCeilingsShare * config_.budget_s, kCeilingsMost), "ceilings");
  if (config_.measure_steps && !stopped()) measure_steps(config_.measure_kernels ? kStepsShare * config_.budget_s : 0.7 * seconds_left());
  if (config_.measure_steps && !stopped()) measure_numerics();
  if (config_.measure_steps && !stopped()) measure_memory();
  const double again_s = config_.measure_ceilings ? std::min(kAgainShare * config_.budget_s, kAgainMost) : 0;
  if (config_.measure_kernels && !stopped()) measure_kernels(std::max(seconds_left() - again_s, 1.0));
  if (again_s > 0 && !stopped()) measure_ceilings(again_s, "ceilings again");
  // The best ceilings of the whole run are the roofs of every row.
  put_steps(steps_);
  put_in_step();
  put_kernels();
  put_workload();
  const RunStatus status = stopped() ? RunStatus::interrupted : RunStatus::complete;
  document_.finish(status, steady_clock().now_s() - start_s_);
  write_document(out_, document_.json());
  return status;
}

void Session::checkpoint() { checkpoint_document(out_, document_.json()); }

void Session::measure_ceilings(double budget_s, const char* what) {
  if (events_.show) events_.show(what, 0, 0);
  const std::vector<Ceiling> measured = mixroof::measure_ceilings(backend_, {.budget_s = budget_s, .seed = config_.seed, .stop = events_.stop});
  merge_best(ceilings_, measured);
  for (const Ceiling& ceiling : ceilings_) document_.put_ceiling(ceiling_json(ceiling));
  checkpoint();
  if (events_.finish_case) events_.finish_case(fmt::format("{}: {} measured", what, measured.size()));
}

void Session::measure_steps(double budget_s) {
  const auto on_block = [&](const std::vector<StepRecord>& steps) {
    put_steps(steps);
    checkpoint();
  };
  numerics_.emplace(config_, data_, backend_, events_, kNumericsShare * config_.budget_s);
  const auto at_end = [&](const StepRecord& step, Execution& execution) { numerics_->observe_end(step, execution); };
  steps_ = run_steps(config_, data_, backend_, {.budget_s = budget_s, .states = services_.states, .at_end = at_end}, events_, on_block);
  // A baseline that ran in several groups has one row: its first.
  std::vector<StepRecord> distinct;
  for (StepRecord& step : steps_)
    if (std::none_of(distinct.begin(), distinct.end(), [&](const StepRecord& known) { return known.recipe == step.recipe; }))
      distinct.push_back(std::move(step));
  steps_ = std::move(distinct);
  const bool has_fp32 = std::any_of(steps_.begin(), steps_.end(), [](const StepRecord& step) { return step.recipe->name == kBaselineRecipe; });
  if (!has_fp32 && !steps_.empty() && !stopped())
    fp32_ = fp32_trajectory(config_, data_, backend_, static_cast<std::int64_t>(steps_.front().loss.size()), events_);
  put_steps(steps_);
  put_in_step();
  put_workload();
  checkpoint();
  if (!events_.finish_case) return;
  for (const StepRecord& step : steps_)
    events_.finish_case(step.status == Status::ok
                            ? fmt::format("{}: {} updates, loss {:.3f} -> {:.3f}", step.recipe->name, step.loss.size(),
                                          step.loss.empty() ? 0.0 : step.loss.front(), step.loss.empty() ? 0.0 : step.loss.back())
                            : fmt::format("{}: {} ({})", step.recipe->name, name(step.status), step.reason));
}

void Session::measure_numerics() {
  for (const StepRecord& step : steps_) {
    if (stopped()) return;
    numerics_->observe_start(step);
    put_steps(steps_);
    checkpoint();
  }
  for (const StepRecord& step : steps_) numerics_->locate_nonfinite(step);
  put_steps(steps_);
  checkpoint();
  if (events_.finish_case) events_.finish_case(fmt::format("numerics: {} recipes beside fp32", steps_.size()));
}

void Session::measure_memory() {
  for (const StepRecord& step : steps_) {
    if (stopped()) return;
    if (step.status == Status::not_supported || step.status == Status::out_of_memory || !services_.memory_pass) continue;
    if (events_.show) events_.show(fmt::format("memory, {}", step.recipe->name), memory_.size(), steps_.size());
    memory_[std::string(step.recipe->name)] = services_.memory_pass(*step.recipe, backend_.tuning());
    put_steps(steps_);
    checkpoint();
  }
  if (events_.finish_case) events_.finish_case(fmt::format("memory: {} recipes, a process each", memory_.size()));
}

void Session::measure_kernels(double budget_s) {
  kernels_ = distinct_kernels(config_, backend_.target());
  std::size_t since_checkpoint = 0;
  const Roofline roofs = roofline();
  time_kernels(config_, backend_, budget_s, events_, kernels_, [&](const KernelRecord& record) {
    for (Json& row : kernel_json(record, roofs, config_)) document_.put_kernel(std::move(row));
    if (++since_checkpoint % 8 == 0) checkpoint();
  });
  checkpoint();
  if (events_.finish_case) events_.finish_case(fmt::format("kernels: {} distinct ops, cold and hot", kernels_.size()));
}

void Session::put_steps(const std::vector<StepRecord>& steps) {
  const StepRecord* fp32 = nullptr;
  for (const StepRecord& step : steps)
    if (fp32 == nullptr && step.recipe->name == kBaselineRecipe && step.status == Status::ok) fp32 = &step;
  std::vector<std::string_view> seen;
  for (const StepRecord& step : steps) {
    if (std::find(seen.begin(), seen.end(), step.recipe->name) != seen.end()) continue;
    seen.push_back(step.recipe->name);
    const auto memory = memory_.find(std::string(step.recipe->name));
    const Trajectory reference = fp32 != nullptr ? Trajectory{.loss = fp32->loss, .grad_norm = fp32->grad_norm} : fp32_;
    Json row = step_json(step, reference, numerics_ ? numerics_->find(*step.recipe) : nullptr,
                         memory == memory_.end() ? std::nullopt : memory->second.seen, roofline(), config_);
    if (row["memory"].is_null() && memory != memory_.end()) row["memory_reason"] = memory->second.reason;
    document_.put_step(std::move(row));
  }
  document_.set_tuning(tuning_json(backend_.tuning()));
}

void Session::put_in_step() {
  const Roofline roofs = roofline();
  for (const StepRecord& step : steps_)
    for (const Slice& s : step.slices)
      if (step.status == Status::ok) document_.put_kernel(in_step_json(step, s, roofs, config_));
}

void Session::put_kernels() {
  const Roofline roofs = roofline();
  for (const KernelRecord& record : kernels_)
    for (Json& row : kernel_json(record, roofs, config_)) document_.put_kernel(std::move(row));
}

void Session::put_workload() {
  std::int64_t updates = 0;
  double effective = static_cast<double>(effective_tokens(window_of(config_, data_, 0)));
  for (const StepRecord& step : steps_)
    if (step.last.attempted > 0) {
      updates = static_cast<std::int64_t>(step.loss.size());
      effective = static_cast<double>(step.last.tokens_consumed) / static_cast<double>(step.loss.size());
      break;
    }
  document_.set("workload", workload_json(config_, data_, updates, effective));
}

}  // namespace mixroof
