#include "kernels/quantize/scale_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/numeric/codec.h"

namespace mixroof {

ScaleChoice scale_of_amax(float amax, double max_finite, float previous, double margin) {
  if (!std::isfinite(amax) || amax == 0) return {previous, 1 / previous, true, false};
  const float quotient = static_cast<float>(max_finite) / amax / static_cast<float>(std::exp2(margin));
  const bool clamped = std::isinf(quotient);
  const float scale = clamped ? std::numeric_limits<float>::max() : quotient;
  return {scale, 1 / scale, false, clamped};
}

ScaleChoice mx_scale_of_amax(float amax, double max_finite, MxRounding rounding) {
  if (!std::isfinite(amax)) return {1, 1, true, false};
  const auto inverse = static_cast<float>(1 / max_finite);
  float scale_inv = decode_e8m0(encode_e8m0(amax * inverse));
  if (rounding == MxRounding::floor && amax != 0) {
    const int exponent = std::ilogb(amax) - std::ilogb(max_finite);
    scale_inv = std::ldexp(1.0f, std::clamp(exponent, -127, 127));
  }
  return {1 / scale_inv, scale_inv, amax == 0, false};
}

std::int64_t scale_block(Fp8Scaling scaling, std::int64_t reduction) {
  switch (scaling) {
    case Fp8Scaling::channel:
      return std::max<std::int64_t>(reduction, 1);
    case Fp8Scaling::block128:
      return 128;
    case Fp8Scaling::mx32:
      return 32;
    default:
      return 0;
  }
}

Format scale_format(Fp8Scaling scaling) { return scaling == Fp8Scaling::mx32 ? Format::e8m0 : Format::fp32; }

}  // namespace mixroof
