// The rules of kernels/update_control/update_control.h as plain functions on a control tensor. Reference and CPU share
// them: a decision has one definition, and what defends it are the recorded traces in the test, not a second copy.
#pragma once

#include "kernels/update_control/update_control.h"

namespace mixroof {

/// The constants of a problem made by decide_problem or advance_problem.
UpdateConstants update_constants(const Problem& problem);

/// Learning rate of applied update number `applied` (from 1).
double scheduled_learning_rate(const UpdateConstants& constants, double applied);

/// `control` holds kControlSlots values (kernels/control.h).
void decide(const UpdateConstants& constants, double* control);
void advance(const UpdateConstants& constants, double* control);

}  // namespace mixroof
