// The floating-point state of a thread. Loading a library built with fast-math switches on flush-to-zero for the loading
// thread and for every thread started later, so each worker sets its state at the start of each parallel region.
#pragma once

#include <string>
#include <vector>

namespace mixroof {

/// Round to nearest even, subnormals kept (no flush-to-zero, no denormals-are-zero), exceptions masked.
void set_processor_state();
/// Whether this thread is in that state.
bool processor_state_is_strict();

/// Instruction paths of this processor for which the operating system keeps registers, best first.
std::vector<std::string> instruction_paths();
/// "AMD EPYC 7B13": the brand string.
std::string processor_name();

}  // namespace mixroof
