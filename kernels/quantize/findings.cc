#include "kernels/quantize/findings.h"

#include <fmt/format.h>

#include <limits>

#include "harness/numeric/codec.h"

namespace mixroof {

double RefFindings::round_to_code(Format codes, double scaled) { return round_to(codes, scaled); }

Support supports_quantizing(const Problem& problem, const DeviceFacts&) {
  const Format x = problem.formats[0];
  if (x == Format::fp32 || is_16_bit(x)) return {};
  return Support::no(fmt::format("cannot quantize from {}; use fp32, fp16 or bf16", name(x)));
}

double larger_magnitude(double amax, double value) {
  if (std::isnan(amax) || std::isnan(value)) return std::numeric_limits<double>::quiet_NaN();
  return std::max(amax, std::fabs(value));
}

}  // namespace mixroof
