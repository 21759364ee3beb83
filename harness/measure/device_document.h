// The document's section `device`: what the device is, and how its arithmetic was found to round.
#pragma once

#include "harness/backend/facts.h"
#include "harness/execute/arithmetic_probe.h"
#include "harness/result/document.h"

namespace mixroof {

Json device_json(const DeviceFacts& facts, const ArithmeticFacts& arithmetic);

/// device.arithmetic: conversions[], products[], addition.
Json arithmetic_json(const ArithmeticFacts& arithmetic);

}  // namespace mixroof
