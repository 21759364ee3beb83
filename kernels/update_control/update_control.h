// The decisions of an update, on the device: one tiny op before the optimizer and one after it, on the control tensor
// (kernels/control.h) alone. Operand of both: control fp64 (read_write).
//
//   decide   apply = effective_tokens > 0 and not found_inf; scale_used = loss_scale; grad_norm = √grad_square_sum /
//            loss_scale; clip_coefficient = min(1, max_norm / grad_norm) (1 when max_norm is 0: no clipping; no epsilon);
//            grad_factor = clip_coefficient / loss_scale. When applied: updates_applied += 1, bias corrections from it,
//            learning_rate from the schedule at the new count. Always: updates_attempted += 1, tokens_consumed +=
//            effective_tokens; when skipped updates_skipped += 1.
//   advance  the dynamic loss scale (dynamic=1): found_inf: scale × backoff (as fp32), tracker 0, not below the floor; at the
//            floor already: scale_exhausted = 1. Otherwise, when applied, tracker + 1; at growth_interval: scale × growth (as
//            fp32) unless that passes the ceiling, tracker 0. A window without effective tokens changes nothing. Resets
//            found_inf to 0 for the next window.
// Constants: beta1, beta2, max_norm, learning_rate, schedule (0 constant, 1 linear, 2 cosine), warmup, decay_updates,
// dynamic, growth, backoff, growth_interval, floor, ceiling. Schedule at applied update n (1-based): n/warmup of the peak
// while n <= warmup; then constant, or down to 0 at decay_updates, linearly or as (1 + cos)/2.
#pragma once

#include "kernels/kernel.h"

namespace mixroof {

enum class Schedule : std::uint8_t { constant, linear, cosine };

struct UpdateConstants {
  double beta1 = 0.9, beta2 = 0.95;
  double max_norm = 0;            // 0: no clipping
  double learning_rate = 1e-3;
  Schedule schedule = Schedule::constant;
  double warmup = 0;
  double decay_updates = 0;
  bool dynamic_scale = false;
  double growth = 2, backoff = 0.5, growth_interval = 2000, floor = 1, ceiling = 16777216;
};

Problem decide_problem(const UpdateConstants& constants);
Problem advance_problem(const UpdateConstants& constants);

const Kernel& update_control_kernel();
std::span<const Implementation> update_control_cpu();

}  // namespace mixroof
