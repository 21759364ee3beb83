// Where numeric evidence stops being what a recipe's formats explain. One table, stored in each
// document as numerics.limits and printed in README "Limits of the verdict".
//
// The numbers below were fixed before this pass had judged a run, and have not changed. Two rules came after the first
// runs and because of them: AdamW's bound, which tells second moments of 0 that let updates grow (fp16-pure), and that a
// loss diverges only if it does so at equal applied updates too (fp16-master, 24 updates, 4 of them skipped).
//
// Errors of gradients and updates: twice the worst yardstick of recipes that round as they should (float64 against the
// same model with every op rounded; two layers, also with peaked attention):
//
//                                        fp16      bf16     fp8
//   gradient rel L2, yardstick           0.0029    0.0223   0.24
//   update rel L2 after one update       0.06      0.16     0.54
//
// Each layer adds roundings that are independent of the others, so that the gradient's error grows as √(layers / 2) from
// there. AdamW turns a gradient into about its sign: its error is 2·√(share of flipped signs), and that share is
// proportional to the gradient's relative error, so that the update's grows as the square root of that. Both are capped:
// a gradient error of 0.5 turns it by 27°, an update error of 1 is what not updating at all has.
// 1 - cosine follows from a rel L2 of r whose error is independent of the gradient: r²/2.
//
//   underflow and absorption, 0.01  an element whose gradient or update is lost adds its whole update to the error: a
//                                   share of f gives √f; 0.01 gives 0.1, as much as 16-bit rounding. FP32 masters absorb
//                                   what is below |w|·2^-25 of lr = 3e-4: a share near 1e-5, a thousand times less.
//                                   Gradients that AdamW's eps hides anyway are left out.
//   saturation, 0.001               the largest thousandth of normal values has 1.2 % of their energy; halving them adds
//                                   0.055 to the error, as much as rounding to e4m3.
//   loss, 0.02 (fp8 0.03)           mean over the last quarter of the updates. One forward pass is 0.0011 (bf16) and
//                                   0.012 (fp8) off at worst; the rest is room for trajectories that drift apart. A
//                                   judgement. Diverged (0.25) only when that is so at equal applied updates too: a
//                                   recipe that skipped some lags behind.
//   overflow, 0.1                   of the last quarter's updates: a dynamic scale has settled by then.
//
// Diverged: the gradient's error is as large as the gradient (rel L2 1, cosine 0.5), the update's twice as large as the
// update (2), the loss off by a quarter, second moments that underflow let updates grow beyond AdamW's bound, or a
// parameter, moment or loss is not finite.
#pragma once

#include <cstdint>

#include "harness/numeric/recipe.h"

namespace mixroof {

struct NumericsLimits {
  // Beyond one of these a recipe is degraded.
  double grad_rel_l2 = 0, grad_cosine = 0, update_rel_l2 = 0;
  double underflow_fraction = 0.01;         // also of second moments
  double absorbed_update_fraction = 0.01;
  double saturated_fraction = 0.001;
  double overflow_fraction = 0.1;
  double loss_rel_diff = 0.02;
  // Beyond one of these, diverged.
  double diverged_grad_rel_l2 = 1, diverged_grad_cosine = 0.5, diverged_update_rel_l2 = 2, diverged_loss_rel_diff = 0.25;
  // Beyond one of these a single tensor counts as the first divergence: four times what the whole gradient may have, since
  // tensors differ, and never more than the tensor itself; of the update 0.9, since a tensor that stays where it is has 1.
  double tensor_rel_l2 = 0, tensor_update_rel_l2 = 0.9;
};

NumericsLimits limits_for(const Recipe& recipe, std::int64_t layers);

}  // namespace mixroof
