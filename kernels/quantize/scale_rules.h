// Where FP8 scales come from: the rules as plain functions on single values, shared by reference and implementations;
// what defends them are the recorded cases in the tests, not a second copy.
//
// A scale multiplies: code = saturating encode of fp32(x · scale), value = fp32(decode(code) · scale_inv), scale_inv =
// fp32(1 / scale). Conventions of NVIDIA Transformer Engine; MX scales by OCP Microscaling Formats (MX) rev. 1.0,
// rounded up as Transformer Engine does, so that nothing saturates.
#pragma once

#include <cstdint>

#include "harness/numeric/format.h"
#include "harness/numeric/recipe.h"

namespace mixroof {

struct ScaleChoice {
  float scale = 1, scale_inv = 1;
  bool kept = false;     // the amax gave none: 0, infinite or NaN
  bool clamped = false;  // the quotient was infinite
};

/// fp32(max_finite / amax) / 2^margin, max_finite that of the codes' format; an infinite one becomes the largest
/// float32. An amax of 0, infinity or NaN keeps `previous` (1 for blocks, which have none).
ScaleChoice scale_of_amax(float amax, double max_finite, float previous = 1, double margin = 0);

enum class MxRounding : std::uint8_t {
  up,     // the power of two at or above amax / max_finite
  floor,  // 2^(floor(log2 amax) - exponent of max_finite), OCP's own: the top of a block may saturate
};
/// The scale of a block of MXFP8: scale_inv = 2^(code - 127), E8M0. A block of zeros has code 0; one with an infinity
/// or NaN keeps scale 1.
ScaleChoice mx_scale_of_amax(float amax, double max_finite, MxRounding rounding = MxRounding::up);

/// Values of a product's reduction that share a scale: all of it (channel), 128 or 32; 0 for per-tensor scales.
std::int64_t scale_block(Fp8Scaling scaling, std::int64_t reduction);
/// Format in which block scales are stored.
Format scale_format(Fp8Scaling scaling);

}  // namespace mixroof
