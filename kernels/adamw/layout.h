// Places of AdamW's operands: with a master copy there is one operand more.
#pragma once

#include <cstddef>

#include "kernels/kernel.h"

namespace mixroof {

struct AdamwLayout {
  bool has_master;
  std::size_t grad = 0, param = 1;
  std::size_t state;  // the values that the optimizer updates: the master copy, or the parameters themselves
  std::size_t moment1, moment2, control;

  explicit AdamwLayout(const Problem& problem)
      : has_master(problem.formats.size() == 6),
        state(has_master ? 2 : 1),
        moment1(state + 1),
        moment2(state + 2),
        control(state + 3) {}
};

}  // namespace mixroof
