// Comparisons of values with what FP32 has in their place: pure functions over numbers, no tensors, no device.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "harness/numeric/format.h"

namespace mixroof {

/// Running sums from which the distance of values to a reference follows. Sums over tensors add up to those of their
/// union.
struct DifferenceSums {
  double difference_square = 0;  // Σ (value - reference)²
  double value_square = 0, reference_square = 0;
  double product = 0;  // Σ value · reference

  /// `weight`: how many values this one stands for where only every n-th is looked at.
  void add(double value, double reference, double weight = 1);
  void add(const DifferenceSums& other);

  /// ‖value - reference‖ ÷ ‖reference‖. 0 when both are zero everywhere, infinite when only the reference is, NaN when
  /// a value was not finite.
  double rel_l2() const;
  /// Cosine of the angle between both. 1 when both are zero everywhere, 0 when one of them is.
  double cosine() const;
  /// ‖value‖ ÷ ‖reference‖, 1 when both are zero.
  double norm_ratio() const;
};

/// What a tensor holds, as stored.
struct ValueStats {
  std::int64_t count = 0, zeros = 0, nonfinite = 0;
  std::int64_t subnormal = 0;  // not zero and below the least normal number of the format: stored with fewer bits
  double min = std::numeric_limits<double>::infinity(),
         max = -std::numeric_limits<double>::infinity();  // of finite values

  void add(std::span<const double> values, Format format);
};

/// Zeros told apart by what FP32 has in their place.
struct ZeroCounts {
  double values = 0;
  double underflow = 0;   // zero here and not in FP32
  double structural = 0;  // zero in both: masked positions, rows never seen
  /// Underflow of values whose FP32 magnitude is at least a threshold: those that the optimizer would have felt.
  double felt = 0;

  void add(double value, double reference, double felt_from, double weight = 1);
  void add(const ZeroCounts& other);
  double underflow_fraction() const { return values > 0 ? underflow / values : 0; }
  double felt_fraction() const { return values > 0 ? felt / values : 0; }
};

/// Numbers of one AdamW update (kernels/adamw/adamw.h) that do not belong to an element.
struct AdamwScalars {
  double learning_rate = 0, weight_decay = 0, eps = 0, bias_correction1 = 1, bias_correction2 = 1;
};
/// What AdamW adds to a parameter, in double, from the moments after the update.
double exact_adamw_update(const AdamwScalars& scalars, double parameter, double moment1, double moment2);

/// The most that exact AdamW adds to a parameter, in learning rates and without decay: by Cauchy and Schwarz
/// |m̂|/√v̂ <= (1 - β1) / √((1 - β2)(1 - β1²/β2)), 1.17 for 0.9 and 0.95. Infinite when β1² >= β2.
double adamw_step_bound(double beta1, double beta2);

/// Updates that were not zero, and those of them after which the parameter was the same as before.
struct AbsorbedCounts {
  std::int64_t updates = 0, absorbed = 0;

  void add(double exact_update, double before, double after);
  double fraction() const { return updates > 0 ? static_cast<double>(absorbed) / static_cast<double>(updates) : 0; }
};

}  // namespace mixroof
