// Activation checkpointing as a pass over a program (arXiv 1604.06174): between forward and backward only the residual
// stream at each layer's border stays; what else a layer's backward reads is computed again right before it.
#pragma once

#include "harness/program/program.h"

namespace mixroof {

/// Inserts, before each layer's backward, those of its forward ops on which the backward depends (Op::recompute, phase
/// backward). Same inputs, same ops: every value is the one computed first. Copies of weights are never made again, and
/// quantizing again counts no saturation a second time (its amax is a maximum, which a second equal value leaves alone).
Program with_layer_checkpointing(Program program);

}  // namespace mixroof
