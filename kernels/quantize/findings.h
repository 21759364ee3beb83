// What a quantizing pass counts beside the codes, and where it reports it.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "harness/numeric/format.h"
#include "kernels/control.h"
#include "kernels/kernel.h"
#include "kernels/quantize/scale_rules.h"

namespace mixroof {

/// Bit patterns of magnitudes order finite < infinity < NaN, which is just the order in which amax must report them.
inline std::int32_t magnitude_bits(float value) { return std::bit_cast<std::int32_t>(value) & 0x7FFFFFFF; }
inline constexpr std::int32_t kInfinityBits = 0x7F800000;
inline float amax_value(std::int32_t bits) {
  return bits > kInfinityBits ? std::bit_cast<float>(std::int32_t{0x7FC00000}) : std::bit_cast<float>(bits);
}

/// Who made a scale: earlier values, or the very values that it scales. The largest of those comes out at the format's
/// largest value but for two roundings of fp32, which is no saturation.
enum class ScaleOrigin : std::uint8_t { earlier, own };

struct Thresholds {
  float saturates_above;
  float rounds_to_zero;  // up to it a scaled value becomes zero: half the smallest subnormal ties to even

  Thresholds(Format codes, ScaleOrigin origin)
      : saturates_above(static_cast<float>(facts(codes).max_finite * (origin == ScaleOrigin::own ? 1 + 0x1p-22 : 1))),
        rounds_to_zero(static_cast<float>(facts(codes).min_subnormal / 2)) {}
};

/// Whole numbers of bits and elements, so any order of the workers gives the same.
struct Findings {
  std::int32_t amax_bits = 0;
  std::int64_t saturated = 0, flushed = 0;  // values
  std::int64_t kept = 0, clamped = 0;       // scales

  void add(const ScaleChoice& choice) {
    kept += choice.kept;
    clamped += choice.clamped;
  }
  void merge(const Findings& other) {
    amax_bits = std::max(amax_bits, other.amax_bits);
    saturated += other.saturated;
    flushed += other.flushed;
    kept += other.kept;
    clamped += other.clamped;
  }
  /// `scale_counts` may be null.
  void report(double* counts, double* scale_counts, double* control) const {
    counts[0] += static_cast<double>(saturated);
    counts[1] += static_cast<double>(flushed);
    if (scale_counts != nullptr) {
      scale_counts[0] += static_cast<double>(kept);
      scale_counts[1] += static_cast<double>(clamped);
    }
    if (amax_bits >= kInfinityBits) slot(control, Slot::found_inf) = 1;
  }
};

/// One value by the contract, for references: fp32(x · scale) encoded, what it counts, found_inf for a non-finite x.
struct RefFindings {
  ScaleOrigin origin;
  double* counts;
  double* control;

  double code(double x, float scale, Format codes) const {
    const double scaled = static_cast<float>(x) * scale;
    const double value = round_to_code(codes, scaled);
    if (std::fabs(scaled) > Thresholds(codes, origin).saturates_above) counts[0] += 1;
    if (value == 0 && x != 0) counts[1] += 1;
    if (!std::isfinite(x)) slot(control, Slot::found_inf) = 1;
    return value;
  }

 private:
  static double round_to_code(Format codes, double scaled);
};

/// Implementation::supports of CPU kernels that quantize operand 0: from fp32, fp16 or bf16.
Support supports_quantizing(const Problem& problem, const DeviceFacts& facts);

/// The larger magnitude; a NaN wins over everything, so that it cannot hide behind a later value.
double larger_magnitude(double amax, double value);

}  // namespace mixroof
