#include "harness/program/bytes.h"

#include <algorithm>
#include <numeric>

#include "harness/numeric/checked.h"
#include "kernels/registry.h"

namespace mixroof {
namespace {

/// An op of the schedule (the three sections one after another, each once).
struct Step {
  SectionKind section;
  std::size_t index;
  const Op* op;
};

std::vector<Step> steps_of(const Program& program) {
  std::vector<Step> steps;
  for (int s = 0; s < kSectionCount; ++s) {
    const auto kind = static_cast<SectionKind>(s);
    for (std::size_t i = 0; i < program.section(kind).size(); ++i) steps.push_back({kind, i, &program.section(kind)[i]});
  }
  return steps;
}

struct Range {
  std::size_t begin = 0, end = 0;  // steps, both included
};

/// Live ranges of every tensor: from an op that writes all of it to the last use before the next such op. Tensors that no
/// op begins (persistent ones, inputs) have none.
std::vector<std::vector<Range>> live_ranges(const Program& program, const std::vector<Step>& steps) {
  std::vector<std::vector<Range>> ranges(program.tensors.size());
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const Op& op = *steps[s].op;
    const std::vector<Operand> operands = find_kernel(op.problem.kernel).operands(op.problem);
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const auto id = static_cast<std::size_t>(op.operands[i].tensor);
      if (program.tensors[id].persistent) continue;
      if (operands[i].access == Access::write)
        ranges[id].push_back({s, s});
      else if (!ranges[id].empty())
        ranges[id].back().end = s;
    }
    if (op.workspace >= 0) ranges[static_cast<std::size_t>(op.workspace)].push_back({s, s});
  }
  return ranges;
}

/// What a further micro-batch reads but the first one made lives to the end of the window, however often it repeats.
void extend_to_window(const std::vector<Step>& steps, std::vector<std::vector<Range>>& ranges) {
  std::size_t last_of_next = 0;
  for (std::size_t s = 0; s < steps.size(); ++s)
    if (steps[s].section == SectionKind::next) last_of_next = s;
  for (std::vector<Range>& of_tensor : ranges)
    for (Range& range : of_tensor)
      if (steps[range.begin].section == SectionKind::first && steps[range.end].section == SectionKind::next)
        range.end = last_of_next;
}

/// The steps of a program and the live ranges of its tensors, those of a window extended.
struct Schedule {
  std::vector<Step> steps;
  std::vector<std::vector<Range>> ranges;  // by tensor, in order and apart from each other

  explicit Schedule(const Program& program) : steps(steps_of(program)), ranges(live_ranges(program, steps)) {
    extend_to_window(steps, ranges);
  }
};

bool overlap(const std::vector<Range>& a, const std::vector<Range>& b) {
  if (a.back().end < b.front().begin || b.back().end < a.front().begin) return false;
  return std::any_of(a.begin(), a.end(), [&](const Range& x) {
    return std::any_of(b.begin(), b.end(), [&](const Range& y) { return x.begin <= y.end && y.begin <= x.end; });
  });
}

std::int64_t aligned(std::int64_t bytes) { return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment; }

/// First fit by falling size: each tensor goes to the lowest offset where nothing alive at the same time lies.
void pack_arena(const Program& program, const std::vector<std::vector<Range>>& ranges, BytePlan& plan) {
  plan.arena_offset.assign(program.tensors.size(), 0);
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < program.tensors.size(); ++i) {
    if (!ranges[i].empty()) {
      order.push_back(i);
      continue;
    }
    plan.arena_offset[i] = plan.arena_bytes;
    plan.arena_bytes = checked_sum(plan.arena_bytes, aligned(program.tensors[i].bytes()));
  }
  const std::int64_t base = plan.arena_bytes;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return program.tensors[a].bytes() > program.tensors[b].bytes();
  });
  std::vector<std::size_t> placed;  // by offset
  for (const std::size_t id : order) {
    const std::int64_t bytes = aligned(program.tensors[id].bytes());
    std::int64_t offset = base;
    for (const std::size_t other : placed) {
      if (!overlap(ranges[id], ranges[other])) continue;
      if (offset + bytes <= plan.arena_offset[other]) break;
      offset = std::max(offset, plan.arena_offset[other] + aligned(program.tensors[other].bytes()));
    }
    plan.arena_offset[id] = offset;
    plan.arena_bytes = std::max(plan.arena_bytes, checked_sum(offset, bytes));
    placed.insert(std::upper_bound(placed.begin(), placed.end(), id,
                                   [&](std::size_t a, std::size_t b) { return plan.arena_offset[a] < plan.arena_offset[b]; }),
                  id);
  }
}

std::int64_t total(const BytesByClass& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); }

/// Everything of a plan but the arena.
BytePlan plan_live_bytes(const Program& program, const Schedule& all) {
  const auto& [steps, ranges] = all;
  BytePlan plan;
  BytesByClass live = {};
  const auto count = [&](BytesByClass& bytes, std::size_t id) -> std::int64_t& {
    return bytes[static_cast<std::size_t>(program.tensors[id].tensor_class)];
  };
  std::vector<std::vector<std::size_t>> begins(steps.size()), ends(steps.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const std::int64_t bytes = program.tensors[i].bytes();
    if (program.tensors[i].persistent) count(plan.persistent, i) += bytes;
    if (ranges[i].empty()) count(live, i) = checked_sum(count(live, i), bytes);
    for (const Range& range : ranges[i]) {
      begins[range.begin].push_back(i);
      ends[range.end].push_back(i);
    }
  }
  plan.persistent_total = total(plan.persistent);

  for (std::size_t s = 0; s < steps.size(); ++s) {
    for (const std::size_t id : begins[s]) count(live, id) = checked_sum(count(live, id), program.tensors[id].bytes());
    const std::int64_t now = total(live);
    if (now > plan.live_peak) {
      plan.live_peak = now;
      plan.at_peak = live;
      plan.peak_phase = steps[s].op->phase;
      plan.peak_op = steps[s].op->name;
    }
    plan.activation_peak = std::max(plan.activation_peak, live[static_cast<std::size_t>(TensorClass::activation)]);
    plan.workspace_peak = std::max(plan.workspace_peak, live[static_cast<std::size_t>(TensorClass::workspace)]);
    if (steps[s].section != SectionKind::next) plan.timeline.push_back({steps[s].op->phase, now});
    for (const std::size_t id : ends[s]) count(live, id) -= program.tensors[id].bytes();
  }
  return plan;
}

}  // namespace

Lifetimes lifetimes(const Program& program) {
  const Schedule all(program);
  const auto& [steps, ranges] = all;
  Lifetimes result;
  for (int s = 0; s < kSectionCount; ++s)
    result.ops[static_cast<std::size_t>(s)].resize(program.section(static_cast<SectionKind>(s)).size());
  const auto at = [&](std::size_t step) -> Lifetimes::AtOp& {
    return result.ops[static_cast<std::size_t>(steps[step].section)][steps[step].index];
  };
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    if (ranges[i].empty()) result.throughout.push_back(id);
    for (const Range& range : ranges[i]) {
      at(range.begin).begin.push_back(id);
      const bool ends_with_window =
          steps[range.begin].section == SectionKind::first && steps[range.end].section == SectionKind::next;
      if (ends_with_window)
        result.end_of_window.push_back(id);
      else
        at(range.end).end.push_back(id);
    }
  }
  return result;
}

BytePlan plan_bytes(const Program& program) {
  const Schedule all(program);
  BytePlan plan = plan_live_bytes(program, all);
  pack_arena(program, all.ranges, plan);
  return plan;
}

std::int64_t live_peak_bytes(const Program& program) { return plan_live_bytes(program, Schedule(program)).live_peak; }

DramTraffic dram_traffic(const Program& program, const BytePlan& plan, std::int64_t cache_bytes) {
  std::vector<bool> is_read(program.tensors.size()), is_written(program.tensors.size());
  for (const std::vector<Op>& section : program.sections)
    for (const Op& op : section) {
      const std::vector<Operand> operands = find_kernel(op.problem.kernel).operands(op.problem);
      for (std::size_t i = 0; i < operands.size(); ++i) {
        const auto id = static_cast<std::size_t>(op.operands[i].tensor);
        if (operands[i].access != Access::write) is_read[id] = true;
        if (operands[i].access != Access::read) is_written[id] = true;
      }
    }
  DramTraffic traffic;
  for (std::size_t id = 0; id < program.tensors.size(); ++id) {
    if (!program.tensors[id].persistent) continue;
    if (is_read[id]) traffic.read += program.tensors[id].bytes();
    if (is_written[id]) traffic.written += program.tensors[id].bytes();
  }
  const std::int64_t spilled = std::max<std::int64_t>(0, plan.activation_peak - cache_bytes);
  traffic.read = std::max<std::int64_t>(0, traffic.read - cache_bytes) + spilled;
  traffic.written = std::max<std::int64_t>(0, traffic.written - cache_bytes) + spilled;
  return traffic;
}

}  // namespace mixroof
