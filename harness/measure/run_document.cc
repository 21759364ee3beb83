#include "harness/measure/run_document.h"

#include <fmt/format.h>

#include <cmath>

#include "harness/execute/sha256.h"
#include "harness/measure/kernel_subject.h"
#include "harness/measure/numerics_document.h"
#include "harness/stats/summary.h"
#include "kernels/registry.h"

namespace mixroof {
namespace {

constexpr double kStepTargetHalfWidth = 0.02;

Summary summary_of(const std::vector<double>& samples, double target = kStepTargetHalfWidth) {
  Summary summary = summarize(samples);
  summary.converged = summary.relative_half_width() <= target;
  return summary;
}

Json shape_json(const Problem& problem) {
  Json shape = Json::object();
  for (const auto& [key, value] : problem.shape) shape[key] = value;
  return shape;
}

Json formats_json(const Problem& problem) {
  Json formats = Json::object();
  for (const Operand& operand : find_kernel(problem.kernel).operands(problem)) formats[operand.name] = name(operand.format);
  return formats;
}

Json flops_by_format(const std::array<std::int64_t, kFormatCount>& flops) {
  Json by_format = Json::object();
  for (const Format format : all_formats())
    if (const std::int64_t count = flops[static_cast<std::size_t>(format)]; count > 0) by_format[name(format)] = count;
  return by_format;
}

std::string repro(const RunConfig& config, std::string_view recipe, std::string_view part) {
  return fmt::format("mixroof run {} --recipes {} --parts {}", config.workload_options, recipe, part);
}

Json roof_json(const Roofline& roofline, const Work& work, CacheState state, double time_s) {
  const std::optional<Point> point = roofline.point(work, state, time_s);
  if (!point) return nullptr;
  return {{"ceiling_ids", point->roof.ceiling_ids},
          {"bound", name(point->roof.bound)},
          {"time_s", point->roof.time_s},
          {"fraction", point->fraction},
          {"above_ceiling", point->above_ceiling}};
}

/// What every row of a kernel shares.
Json kernel_row(const Problem& problem, std::string_view phase, std::string_view recipe, std::int64_t count,
                std::int64_t recomputed, CacheState cache, const RunConfig& config) {
  const Cost cost = find_kernel(problem.kernel).cost(problem);
  return {{"id", fmt::format("{}/{}/{}", recipe, problem.id(), name(cache))},
          {"kernel", problem.kernel},
          {"variant", problem.variant},
          {"phase", phase},
          {"recipe", recipe},
          {"shape", shape_json(problem)},
          {"formats", formats_json(problem)},
          {"accumulate", problem.accumulate},
          {"count_per_update", count},
          {"recomputed_per_update", recomputed},
          {"flops", {{"useful", flops_by_format(cost.useful_flops)}, {"padded", flops_by_format(cost.padded_flops)}}},
          {"bytes", {{"read", cost.bytes_read}, {"written", cost.bytes_written}, {"provenance", "model"}}},
          {"cache", name(cache)},
          {"time_s", nullptr},
          {"status", nullptr},
          {"reason", nullptr},
          {"implementation", nullptr},
          {"emulated", nullptr},
          {"roof", nullptr},
          {"repro", repro(config, recipe, "kernels")}};
}

/// Time, roof and status of a row that was sampled.
void set_time(Json& row, const Problem& problem, const Summary& time, CacheState state, bool emulated, const Roofline& roofline) {
  row["time_s"] = stat_to_json(time);
  const Work work = work_of(find_kernel(problem.kernel).cost(problem), emulated);
  row["roof"] = roof_json(roofline, work, state, time.median);
  if (!row["roof"].is_null() && row["roof"]["above_ceiling"].get<bool>())
    set_status(row, Status::untrusted,
               fmt::format("{:.1f} % of its roof: the time, a count or a ceiling is wrong", 100 * row["roof"]["fraction"].get<double>()));
  else if (!time.converged)
    set_status(row, Status::not_converged,
               fmt::format("after {} samples the median's interval is ±{:.1f} % wide", time.n, 100 * time.relative_half_width()));
  else
    set_status(row, Status::ok);
}

Json cost_json(const StepRecord& step) {
  Json cost = Json::object();
  for (std::size_t c = 0; c < kCostCategoryCount; ++c) cost[name(static_cast<CostCategory>(c))] = step.category_s[c];
  cost["recompute"] = step.recompute_s;
  cost["idle"] = step.idle_s;
  return cost;
}

/// Everything one update of a recipe does.
struct UpdateWork {
  std::array<std::int64_t, kFormatCount> model = {}, executed = {}, padded = {};
  Work needed;  // the model's FLOPs by the format they are carried out in: without padding and recomputation
  Work dram;  // FLOPs and the bytes that must come from DRAM
  std::vector<Work> ops;
  std::array<std::vector<Work>, kPhaseCount> by_phase;
};

UpdateWork update_work(const StepRecord& step) {
  UpdateWork all;
  for (const Slice& s : step.slices) {
    const Cost cost = find_kernel(s.problem.kernel).cost(s.problem);
    const bool emulated = step.implementations.at(s.problem.id()).second;
    const Work work = work_of(cost, emulated);
    const std::int64_t needed = s.count_per_update - s.recomputed_per_update;
    for (std::size_t f = 0; f < kFormatCount; ++f) {
      all.model[f] += needed * cost.useful_flops[f];
      all.padded[f] += s.count_per_update * cost.padded_flops[f];
      // Emulated products are carried out in fp32, whatever their operands are stored in.
      const std::size_t executed = emulated ? static_cast<std::size_t>(Format::fp32) : f;
      all.needed.flops[executed] += needed * cost.useful_flops[f];
      all.executed[executed] += s.count_per_update * cost.padded_flops[f];
      all.dram.flops[executed] += s.count_per_update * cost.padded_flops[f];
    }
    for (std::int64_t i = 0; i < s.count_per_update; ++i) {
      all.ops.push_back(work);
      const Phase phase = i < needed ? s.phase : Phase::backward;
      all.by_phase[static_cast<std::size_t>(phase)].push_back(work);
    }
  }
  all.dram.bytes_read = step.dram_read;
  all.dram.bytes_written = step.dram_written;
  return all;
}

std::int64_t total(const std::array<std::int64_t, kFormatCount>& flops) {
  std::int64_t sum = 0;
  for (const std::int64_t count : flops) sum += count;
  return sum;
}

void set_roofs(Json& row, const StepRecord& step, const Summary& time, const Roofline& roofline) {
  const UpdateWork work = update_work(step);
  row["flops_per_update"] = {{"model", total(work.model)}, {"executed", flops_by_format(work.executed)}, {"padded", flops_by_format(work.padded)}};
  Json mfu = Json::object();
  const RoofResult compute = roofline.floor(work.needed);
  set_number(mfu, "measured", compute.roof ? std::optional(compute.roof->time_s / time.median) : std::nullopt, compute.reason);
  set_number(mfu, "promised", std::nullopt, "the catalogue has no promised rate for this device");
  row["mfu"] = std::move(mfu);
  const RoofResult floor = roofline.floor(work.dram);
  set_number(row, "floor_s", floor.roof ? std::optional(floor.roof->time_s) : std::nullopt, floor.reason);
  set_number(row, "floor_fraction", floor.roof ? std::optional(floor.roof->time_s / time.median) : std::nullopt, floor.reason);
  const Roofline::Sum sum = roofline.roof_sum(work.ops, CacheState::in_step);
  set_number(row, "roof_sum_s", sum.time_s, sum.reason);
  Json phases = Json::object();
  for (std::size_t p = 0; p < kPhaseCount; ++p) {
    const Roofline::Sum roof = roofline.roof_sum(work.by_phase[p], CacheState::in_step);
    const double median_s = median(step.phase_s[p]);
    Json phase = Json::object();
    set_number(phase, "time_s", roof.time_s, roof.reason);
    set_number(phase, "fraction", roof.time_s ? std::optional(*roof.time_s / median_s) : std::nullopt, roof.reason);
    phases[name(static_cast<Phase>(p))] = std::move(phase);
  }
  row["phase_roofs"] = std::move(phases);
}

/// Ratio of FP32's time to this recipe's, block by block: both were measured within moments of each other.
Json speedup_json(const StepRecord& step) {
  std::vector<double> ratios;
  for (std::size_t b = 0; b < step.baseline_block_median_s.size(); ++b) {
    const double ratio = step.baseline_block_median_s[b] / step.block_median_s[b];
    if (std::isfinite(ratio)) ratios.push_back(ratio);
  }
  if (ratios.empty()) return nullptr;
  const Summary summary = summarize(ratios);
  return {{"median", number_or_null(summary.median)}, {"low", number_or_null(summary.low)}, {"high", number_or_null(summary.high)}};
}

double in_step_sum(const StepRecord& step) {
  double sum = 0;
  for (const Slice& s : step.slices)
    if (const auto found = step.in_step_s.find(s.problem.id()); found != step.in_step_s.end())
      sum += static_cast<double>(s.count_per_update) * median(found->second);
  return sum;
}

Json bytes_by_class_json(const BytesByClass& bytes) {
  Json by_class = Json::object();
  for (const TensorClass c : {TensorClass::param, TensorClass::master, TensorClass::grad, TensorClass::moment1, TensorClass::moment2,
                              TensorClass::scaling_state, TensorClass::compute_copy})
    by_class[name(c)] = bytes[static_cast<std::size_t>(c)];
  return by_class;
}

}  // namespace

Json ceiling_json(const Ceiling& c) {
  const bool is_compute = c.kind == CeilingKind::compute;
  return {{"id", c.id}, {"kind", name(c.kind)}, {"path", c.path}, {"level", is_compute ? Json(nullptr) : Json(c.level)},
          {"mix", is_compute ? Json(nullptr) : Json(c.mix)}, {"shape", c.shape}, {"working_set_bytes", c.working_set_bytes},
          {"sustained", c.sustained}, {"unit", c.unit()}, {"measured", stat_to_json(c.measured)}, {"promised", nullptr},
          {"implementation", c.implementation}};
}

Json tuning_json(const TuningRecord& tuning) {
  Json rows = Json::array();
  for (const auto& [problem, choice] : tuning.choices())
    rows.push_back({{"problem", problem}, {"implementation", choice.implementation}, {"library", choice.library}, {"time_s", number_or_null(choice.time_s)}});
  return rows;
}

void read_tuning(const Json& tuning, TuningRecord& record) {
  for (const Json& row : tuning)
    record.set(row.at("problem"), {.implementation = row.at("implementation"), .library = row.at("library"),
                                   .time_s = row.at("time_s").is_null() ? 0.0 : row.at("time_s").get<double>()});
}

Json workload_json(const RunConfig& config, const TokenData& data, std::int64_t updates, double effective_tokens_per_update) {
  const Model& m = config.model;
  const AdamwConstants& adamw = config.lower.optimizer;
  const UpdateConstants& update = config.lower.update;
  static constexpr std::string_view kSchedules[] = {"constant", "linear", "cosine"};
  Json workload = {
      {"key", nullptr},
      {"model", {{"name", m.name}, {"family", m.family}, {"layers", m.layers}, {"width", m.width}, {"heads", m.heads},
                 {"kv_heads", m.kv_heads}, {"head_dim", m.head_dim}, {"hidden", m.hidden}, {"vocab", m.vocab}, {"context", m.context},
                 {"rope_theta", m.rope_theta > 0 ? Json(m.rope_theta) : Json(nullptr)}, {"tied_head", m.tied_head},
                 {"qkv_bias", m.qkv_bias}, {"parameters", m.parameters()}}},
      {"data", {{"kind", data.kind()}, {"sha256", data.sha256()}, {"tokens", data.count()}}},
      {"tokens_per_update", config.batch.tokens_per_update()},
      {"effective_tokens_per_update", effective_tokens_per_update},
      {"sequence", {{"length", config.batch.seq}, {"packed", config.batch.packed},
                    {"document_end", data.document_end() ? Json(*data.document_end()) : Json(nullptr)}}},
      {"updates", updates},
      {"optimizer", {{"name", "adamw"}, {"beta1", adamw.beta1}, {"beta2", adamw.beta2}, {"eps", adamw.eps},
                     {"weight_decay", adamw.weight_decay}, {"decay_on", config.lower.decay_all ? "all" : "matrices"}}},
      {"schedule", {{"name", kSchedules[static_cast<std::size_t>(update.schedule)]}, {"learning_rate", update.learning_rate},
                    {"warmup_updates", update.warmup}, {"decay_updates", update.decay_updates}}},
      {"clip", update.max_norm > 0 ? Json(update.max_norm) : Json(nullptr)},
      {"checkpointing", config.lower.checkpointing == Checkpointing::none ? Json(nullptr) : Json(name(config.lower.checkpointing))},
      {"ranks", {{"data", 1}, {"zero_stage", 0}}}};
  // Neither recipe nor micro-batch nor how many updates were run: those may differ between comparable documents.
  Json identity = workload;
  for (const char* key : {"key", "updates"}) identity.erase(key);
  workload["key"] = sha256_hex(identity.dump());
  return workload;
}

std::vector<Json> kernel_json(const KernelRecord& record, const Roofline& roofline, const RunConfig& config) {
  std::vector<Json> rows;
  for (const KernelUse& use : record.uses)
    for (const CacheState cache : {CacheState::cold, CacheState::hot}) {
      Json row = kernel_row(record.problem, name(record.phase), use.recipe->name, use.count_per_update,
                            use.recomputed_per_update, cache, config);
      const Summary& time = cache == CacheState::cold ? record.cold.summary : record.hot.summary;
      row["implementation"] = record.implementation.empty() ? Json(nullptr) : Json(record.implementation);
      row["emulated"] = record.emulated;
      if (record.status != Status::ok)
        set_status(row, record.status, record.reason);
      else if (time.empty())
        set_status(row, Status::skipped, "the run ended before this case (give a larger --budget)");
      else
        set_time(row, record.problem, time, cache, record.emulated, roofline);
      rows.push_back(std::move(row));
    }
  return rows;
}

Json in_step_json(const StepRecord& step, const Slice& s, const Roofline& roofline, const RunConfig& config) {
  Json row = kernel_row(s.problem, name(s.phase), step.recipe->name, s.count_per_update, s.recomputed_per_update,
                        CacheState::in_step, config);
  const auto& [implementation, emulated] = step.implementations.at(s.problem.id());
  row["implementation"] = implementation;
  row["emulated"] = emulated;
  const auto found = step.in_step_s.find(s.problem.id());
  if (found == step.in_step_s.end()) {
    set_status(row, Status::skipped, "the run ended before the traced updates");
    return row;
  }
  Summary time = summary_of(found->second, 1.0);
  set_time(row, s.problem, time, CacheState::in_step, emulated, roofline);
  return row;
}

Json step_json(const StepRecord& step, const Trajectory& fp32, const NumericEvidence* evidence,
               const std::optional<MemoryObservation>& memory, const Roofline& roofline, const RunConfig& config) {
  Json row = {{"recipe", step.recipe->name}, {"status", nullptr}, {"reason", nullptr}, {"diagnostic", step.recipe->diagnostic},
              {"formats", step.formats}};
  const double tokens = step.loss.empty() ? 0 : static_cast<double>(step.last.tokens_consumed) / static_cast<double>(step.loss.size());
  row["effective_tokens_per_update"] = step.loss.empty() ? Json(nullptr) : Json(tokens);
  row["micro_batch"] = config.batch.micro_batch;
  row["micro_batches"] = config.batch.micro_batches;
  for (const char* key : {"time_s", "skipped_time_s", "phases", "cost", "tokens_per_s", "speedup_vs_fp32", "joules_per_update",
                          "flops_per_update", "mfu", "floor_s", "floor_fraction", "roof_sum_s", "kernels_explain_fraction"})
    row[key] = nullptr;
  row["emulated"] = step.emulated;
  row["memory"] = memory ? memory_json(*memory, config.model.parameters()) : Json(nullptr);
  row["numerics"] = step.loss.empty()
                        ? Json(nullptr)
                        : numerics_json(step, fp32, evidence, config.loss_scale_of(*step.recipe), config.model.layers);
  row["clocks"] = {{"effective_tokens", step.last.tokens_consumed}, {"updates_attempted", step.last.attempted},
                   {"updates_applied", step.last.applied_total}, {"updates_skipped", step.last.skipped}};
  row["resumed"] = step.resumed ? Json{{"from_update", step.resumed->from_update}, {"recipe", step.resumed->recipe},
                                       {"conversions", step.resumed->conversions}}
                                : Json(nullptr);
  row["repro"] = repro(config, step.recipe->name, "steps");

  const Summary time = summary_of(step.applied_s);
  if (step.status != Status::ok) {
    set_status(row, step.status, step.reason);
  } else if (time.empty() && !step.skipped_s.empty()) {
    set_status(row, Status::failed,
               fmt::format("no update after the warm-up was applied: gradients were not finite in all {} (lower --lr or --init-scale)",
                           step.skipped_s.size()));
  } else if (time.empty()) {
    set_status(row, Status::skipped, "no update was applied after the warm-up (run more --updates)");
  } else {
    set_status(row, Status::ok);
    row["time_s"] = stat_to_json(time);
    row["warm_up_s"] = step.warm_up_s;
    row["tokens_per_s"] = stat_to_json(rates(time, tokens));
    row["speedup_vs_fp32"] = speedup_json(step);
    if (!step.skipped_s.empty()) row["skipped_time_s"] = stat_to_json(summary_of(step.skipped_s));
    for (std::size_t p = 0; p < kPhaseCount; ++p)
      row["phases"][std::string(name(static_cast<Phase>(p)))] = stat_to_json(summary_of(step.phase_s[p]));
    set_roofs(row, step, time, roofline);
  }
  if (step.traced_updates > 0) {
    row["cost"] = cost_json(step);
    row["traced"] = {{"updates", step.traced_updates}, {"ops_sum_fraction", step.traced_sum_fraction}};
    if (!time.empty()) row["kernels_explain_fraction"] = in_step_sum(step) / time.median;
  }
  return row;
}

Json memory_json(const MemoryObservation& seen, std::int64_t parameters) {
  Json persistent = bytes_by_class_json(seen.persistent_by_class);
  std::int64_t total_bytes = 0;
  for (const std::int64_t bytes : seen.persistent_by_class) total_bytes += bytes;
  persistent["total"] = total_bytes;
  persistent["per_param"] = static_cast<double>(total_bytes) / static_cast<double>(parameters);
  persistent["ledger"] = bytes_by_class_json(seen.ledger_by_class);
  persistent["observed"] = std::max<std::int64_t>(seen.observed_persistent, 0);
  return {{"persistent_bytes", std::move(persistent)},
          {"peak_bytes", {{"live_planned", seen.live_planned}, {"arena_planned", seen.arena_planned}, {"ledger", seen.ledger_peak},
                          {"observed", std::max<std::int64_t>(seen.observed_peak, 0)}, {"observer", seen.observer},
                          {"context", seen.context_bytes}, {"library", std::max<std::int64_t>(seen.library_bytes, 0)},
                          {"residual", seen.observed_peak - seen.ledger_peak}}},
          {"first_update_peak_bytes", std::max<std::int64_t>(seen.first_update_peak, 0)},
          {"peak_phase", seen.peak_phase},
          {"activation_peak_bytes", seen.activation_peak},
          {"workspace_bytes", seen.workspace_peak},
          {"timeline", seen.timeline}};
}

MemoryObservation read_memory(const Json& memory) {
  const Json& persistent = memory.at("persistent_bytes");
  const Json& peak = memory.at("peak_bytes");
  MemoryObservation seen;
  const auto read_classes = [](const Json& by_class, BytesByClass& bytes) {
    for (std::size_t c = 0; c < kTensorClassCount; ++c)
      if (const auto found = by_class.find(std::string(name(static_cast<TensorClass>(c)))); found != by_class.end()) bytes[c] = *found;
  };
  read_classes(persistent, seen.persistent_by_class);
  read_classes(persistent.at("ledger"), seen.ledger_by_class);
  seen.observed_persistent = persistent.at("observed");
  seen.live_planned = peak.at("live_planned");
  seen.arena_planned = peak.at("arena_planned");
  seen.ledger_peak = peak.at("ledger");
  seen.observed_peak = peak.at("observed");
  seen.observer = peak.at("observer");
  seen.context_bytes = peak.at("context");
  seen.library_bytes = peak.at("library");
  seen.first_update_peak = memory.at("first_update_peak_bytes");
  seen.peak_phase = memory.at("peak_phase");
  seen.activation_peak = memory.at("activation_peak_bytes");
  seen.workspace_peak = memory.at("workspace_bytes");
  seen.timeline = memory.at("timeline").get<std::vector<std::int64_t>>();
  return seen;
}

}  // namespace mixroof
