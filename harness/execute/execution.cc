#include "harness/execute/execution.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <unordered_map>

#include "harness/execute/poison.h"

namespace mixroof {
namespace {

constexpr std::size_t kMostOperands = 16;

/// Ops share a plan when problem and constants are equal.
std::string plan_key(const Problem& problem) {
  std::string key = problem.id();
  for (const auto& [name, value] : problem.constants) key += fmt::format("|{}={}", name, value);
  return key;
}

}  // namespace

std::int64_t effective_tokens(const Window& window) {
  std::int64_t count = 0;
  for (const MicroBatch& micro_batch : window)
    count += std::count_if(micro_batch.targets.begin(), micro_batch.targets.end(), [](std::int32_t t) { return t >= 0; });
  return count;
}

std::int64_t attention_pairs(const MicroBatch& micro_batch, std::int64_t seq) {
  std::int64_t pairs = 0;
  for (std::size_t i = 0; i < micro_batch.first_key.size(); ++i)
    pairs += static_cast<std::int64_t>(i) % seq - micro_batch.first_key[i] + 1;
  return pairs;
}

Execution::Execution(Program program, Backend& backend, Placement placement, MemoryResource* memory)
    : program_(std::move(program)), backend_(backend), memory_(memory != nullptr ? *memory : backend.memory()),
      placement_(placement), plan_(plan_bytes(program_)), lifetimes_(lifetimes(program_)) {
  // An arena is packed in the formats' own sizes; a backend that stores otherwise takes tensors one by one.
  if (backend.storage_bytes(Format::bf16, 1) != bytes_of(Format::bf16)) placement_ = Placement::per_tensor;
  pointers_.assign(program_.tensors.size(), nullptr);
  refuse_if_too_big();
  prepare_plans();
  place();
  backend_.reserve_marks(static_cast<std::size_t>(2 * program_.batch.micro_batches + 2));
}

Execution::~Execution() {
  if (arena_ != nullptr) {
    unpoison_range(arena_, plan_.arena_bytes);
    memory_.deallocate(arena_, plan_.arena_bytes, TensorClass::workspace);
    return;
  }
  for (std::size_t i = 0; i < pointers_.size(); ++i)
    if (pointers_[i] != nullptr) free(static_cast<TensorId>(i));
}

std::int64_t Execution::storage_bytes(TensorId tensor) const {
  const Tensor& t = program_.tensors[static_cast<std::size_t>(tensor)];
  return backend_.storage_bytes(t.format, t.count());
}

void Execution::refuse_if_too_big() const {
  const std::int64_t needed = placement_ == Placement::arena ? plan_.arena_bytes : plan_.live_peak;
  const std::int64_t free = backend_.memory_free_bytes();
  if (needed > free)
    throw Error(Status::out_of_memory,
                fmt::format("{} {} at micro-batch {} x {} needs {} bytes, {} has {} free (choose a smaller --micro-batch)",
                            program_.model.name, program_.recipe->name, program_.batch.micro_batch, program_.batch.seq, needed,
                            backend_.facts().backend, free));
}

void Execution::prepare_plans() {
  std::unordered_map<std::string, const Plan*> known;
  for (std::size_t s = 0; s < kSectionCount; ++s)
    for (const Op& op : program_.sections[s]) {
      const std::string key = plan_key(op.problem);
      auto found = known.find(key);
      if (found == known.end()) {
        plans_.emplace_back(key, backend_.prepare(op.problem));
        found = known.emplace(key, plans_.back().second.get()).first;
      }
      bound_[s].push_back({&op, found->second});
    }
}

void Execution::place() {
  if (placement_ == Placement::per_tensor) {
    for (const TensorId id : lifetimes_.throughout) allocate(id);
    return;
  }
  arena_ = memory_.allocate(plan_.arena_bytes, TensorClass::workspace);
  backend_.fill_bytes(arena_, 0, plan_.arena_bytes);  // first touch, outside any timing
  for (std::size_t i = 0; i < pointers_.size(); ++i)
    pointers_[i] = static_cast<unsigned char*>(arena_) + plan_.arena_offset[i];
  if (!poisons_dead_ranges()) return;
  poison_range(arena_, plan_.arena_bytes);
  for (const TensorId id : lifetimes_.throughout) unpoison_range(data(id), storage_bytes(id));
}

void Execution::allocate(TensorId tensor) {
  pointers_[static_cast<std::size_t>(tensor)] =
      memory_.allocate(storage_bytes(tensor), program_.tensors[static_cast<std::size_t>(tensor)].tensor_class);
}

void Execution::free(TensorId tensor) noexcept {
  memory_.deallocate(data(tensor), storage_bytes(tensor), program_.tensors[static_cast<std::size_t>(tensor)].tensor_class);
  pointers_[static_cast<std::size_t>(tensor)] = nullptr;
}

void Execution::initialize(std::span<const std::vector<float>> parameters, double initial_loss_scale) {
  for (std::size_t i = 0; i < program_.parameters.size(); ++i) {
    const Program::Parameter& p = program_.parameters[i];
    const std::vector<double> values(parameters[i].begin(), parameters[i].end());
    write(p.param, values);
    if (p.master >= 0) write(p.master, values);
    for (const TensorId id : {p.grad, p.moment1, p.moment2}) backend_.fill_bytes(data(id), 0, storage_bytes(id));
  }
  for (std::size_t i = 0; i < program_.tensors.size(); ++i)
    if (const auto id = static_cast<TensorId>(i);
        program_.tensors[i].tensor_class == TensorClass::scaling_state && program_.tensors[i].persistent)
      backend_.fill_bytes(data(id), 0, storage_bytes(id));
  std::vector<double> control(kControlSlots, 0.0);
  slot(control.data(), Slot::loss_scale) = initial_loss_scale;
  write(program_.control, control);
  if (program_.fp8_scale >= 0) write(program_.fp8_scale, std::vector<double>(program_.fp8_formats.size(), 1.0));
  if (program_.fp8_limits < 0) return;
  std::vector<double> limits;
  for (const Format format : program_.fp8_formats) limits.push_back(facts(format).max_finite);
  write(program_.fp8_limits, limits);
}

void Execution::set_slot(Slot which, double value) {
  const auto offset = backend_.storage_bytes(Format::fp64, static_cast<std::int64_t>(which));
  backend_.write(static_cast<unsigned char*>(data(program_.control)) + offset, Format::fp64, std::span(&value, 1));
}

void Execution::begin_ranges(const Lifetimes::AtOp& at) {
  if (placement_ == Placement::per_tensor) {
    for (const TensorId id : at.begin) allocate(id);
  } else if (poisons_dead_ranges()) {
    for (const TensorId id : at.begin) unpoison_range(data(id), storage_bytes(id));
  }
}

void Execution::end_ranges(std::span<const TensorId> tensors) {
  if (placement_ == Placement::per_tensor) {
    for (const TensorId id : tensors) free(id);
  } else if (poisons_dead_ranges()) {
    for (const TensorId id : tensors) poison_range(data(id), storage_bytes(id));
  }
}

void Execution::enter_phase(Phase phase) {
  if (!marked_.empty() && marked_.back() == phase) return;
  backend_.mark(marked_.size());
  marked_.push_back(phase);
}

void Execution::run_op(const BoundOp& bound) {
  std::array<void*, kMostOperands> operands;  // filled below as far as it is used
  const std::vector<OperandRef>& refs = bound.op->operands;
  for (std::size_t i = 0; i < refs.size(); ++i) {
    const Tensor& tensor = program_.tensors[static_cast<std::size_t>(refs[i].tensor)];
    operands[i] = static_cast<unsigned char*>(data(refs[i].tensor)) + backend_.storage_bytes(tensor.format, refs[i].offset);
  }
  void* workspace = bound.op->workspace >= 0 ? data(bound.op->workspace) : nullptr;
  backend_.run(*bound.plan, std::span(operands.data(), refs.size()), workspace);
}

void Execution::run_section(SectionKind kind) {
  const auto s = static_cast<std::size_t>(kind);
  for (std::size_t i = 0; i < bound_[s].size(); ++i) {
    const BoundOp& bound = bound_[s][i];
    enter_phase(bound.op->phase);
    begin_ranges(lifetimes_.ops[s][i]);
    if (observer_ != nullptr) observer_->before(*bound.op);
    run_op(bound);
    if (observer_ != nullptr) observer_->after(*bound.op);
    end_ranges(lifetimes_.ops[s][i].end);
  }
}

void Execution::write_inputs(const MicroBatch& m) {
  const auto write_ids = [&](TensorId tensor, const std::vector<std::int32_t>& ids) {
    write(tensor, std::vector<double>(ids.begin(), ids.end()));
  };
  write_ids(program_.tokens, m.tokens);
  write_ids(program_.targets, m.targets);
  const bool is_packed = program_.batch.packed;
  if (m.position_ids.empty() == is_packed || m.first_key.empty() == is_packed)
    throw std::logic_error("documents of a micro-batch: a packed program needs them, another has no place for them");
  if (!is_packed) return;
  write_ids(program_.position_ids, m.position_ids);
  write_ids(program_.first_key, m.first_key);
}

UpdateTimes Execution::run_update(const Window& window) {
  set_slot(Slot::effective_tokens, static_cast<double>(effective_tokens(window)));
  marked_.clear();
  for (std::size_t i = 0; i < window.size(); ++i) {
    write_inputs(window[i]);
    run_section(i == 0 ? SectionKind::first : SectionKind::next);
  }
  end_ranges(lifetimes_.end_of_window);
  run_section(SectionKind::update);
  backend_.mark(marked_.size());
  backend_.synchronize();

  UpdateTimes times;
  for (std::size_t i = 0; i < marked_.size(); ++i)
    times.phase_s[static_cast<std::size_t>(marked_[i])] += backend_.seconds_between(i, i + 1);
  times.total_s = backend_.seconds_between(0, marked_.size());
  return times;
}

UpdateOutcome Execution::outcome() const {
  const std::vector<double> control = read(program_.control);
  const auto at = [&](Slot s) { return slot(control.data(), s); };
  const auto whole = [&](Slot s) { return static_cast<std::int64_t>(at(s)); };
  UpdateOutcome o;
  o.applied = at(Slot::apply) != 0;
  const double tokens = at(Slot::effective_tokens);
  o.loss = tokens > 0 ? at(Slot::loss_sum) / tokens : std::numeric_limits<double>::quiet_NaN();
  o.grad_norm = at(Slot::grad_norm);
  o.clip_coefficient = at(Slot::clip_coefficient);
  o.learning_rate = at(Slot::learning_rate);
  o.loss_scale_used = at(Slot::scale_used);
  o.loss_scale = at(Slot::loss_scale);
  // advance has cleared the flag: a skipped window with tokens was skipped for it.
  o.found_inf = !o.applied && tokens > 0;
  o.state_nonfinite = at(Slot::state_nonfinite) != 0;
  o.scale_exhausted = at(Slot::scale_exhausted) != 0;
  o.attempted = whole(Slot::updates_attempted);
  o.applied_total = whole(Slot::updates_applied);
  o.skipped = whole(Slot::updates_skipped);
  o.growths = whole(Slot::growths);
  o.backoffs = whole(Slot::backoffs);
  o.tokens_consumed = whole(Slot::tokens_consumed);
  return o;
}

std::vector<double> Execution::read(TensorId tensor) const {
  const Tensor& t = program_.tensors[static_cast<std::size_t>(tensor)];
  std::vector<double> values(static_cast<std::size_t>(t.count()));
  backend_.read(data(tensor), t.format, values);
  return values;
}

void Execution::write(TensorId tensor, std::span<const double> values) {
  backend_.write(data(tensor), program_.tensors[static_cast<std::size_t>(tensor)].format, values);
}

const Plan& Execution::plan_of(const Op& op) const {
  for (const std::vector<BoundOp>& section : bound_)
    for (const BoundOp& bound : section)
      if (bound.op->problem == op.problem) return *bound.plan;
  throw std::logic_error(fmt::format("no plan for {}", op.name));
}

}  // namespace mixroof
