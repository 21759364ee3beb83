#include "kernels/quantize/findings.h"

#include <limits>

#include "harness/numeric/codec.h"

namespace mixroof {

double RefFindings::round_to_code(Format codes, double scaled) { return round_to(codes, scaled); }

double larger_magnitude(double amax, double value) {
  if (std::isnan(amax) || std::isnan(value)) return std::numeric_limits<double>::quiet_NaN();
  return std::max(amax, std::fabs(value));
}

}  // namespace mixroof
