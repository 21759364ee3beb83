// The control tensor (kernels/control.h) as an operand; the kernels that have one list it last.
#pragma once

#include "kernels/control.h"
#include "kernels/kernel.h"

namespace mixroof {

inline Operand control_operand() {
  return {.name = "control",
          .access = Access::read_write,
          .format = Format::fp64,
          .extent = {static_cast<std::int64_t>(kControlSlots)},
          .fill = {.kind = Fill::Kind::control}};
}

}  // namespace mixroof
