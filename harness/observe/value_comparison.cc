#include "harness/observe/value_comparison.h"

#include <algorithm>
#include <cmath>

namespace mixroof {

void DifferenceSums::add(double value, double reference, double weight) {
  const double difference = value - reference;
  difference_square += weight * difference * difference;
  value_square += weight * value * value;
  reference_square += weight * reference * reference;
  product += weight * value * reference;
}

void DifferenceSums::add(const DifferenceSums& other) {
  difference_square += other.difference_square;
  value_square += other.value_square;
  reference_square += other.reference_square;
  product += other.product;
}

double DifferenceSums::rel_l2() const {
  if (difference_square == 0) return 0;
  return std::sqrt(difference_square) / std::sqrt(reference_square);
}

double DifferenceSums::cosine() const {
  if (value_square == 0 && reference_square == 0) return 1;
  if (value_square == 0 || reference_square == 0) return 0;
  // Square roots first: the product of the two sums can leave the range of double where the sums do not.
  return std::clamp(product / (std::sqrt(value_square) * std::sqrt(reference_square)), -1.0, 1.0);
}

double DifferenceSums::norm_ratio() const {
  if (value_square == 0 && reference_square == 0) return 1;
  return std::sqrt(value_square) / std::sqrt(reference_square);
}

void ValueStats::add(std::span<const double> values, Format format) {
  const double min_normal = facts(format).min_normal;
  count += static_cast<std::int64_t>(values.size());
  for (const double value : values) {
    if (!std::isfinite(value)) {
      ++nonfinite;
      continue;
    }
    min = std::min(min, value);
    max = std::max(max, value);
    if (value == 0)
      ++zeros;
    else if (std::fabs(value) < min_normal)
      ++subnormal;
  }
}

void ZeroCounts::add(double value, double reference, double felt_from, double weight) {
  values += weight;
  if (value != 0) return;
  if (reference == 0) {
    structural += weight;
    return;
  }
  underflow += weight;
  if (std::fabs(reference) >= felt_from) felt += weight;
}

void ZeroCounts::add(const ZeroCounts& other) {
  values += other.values;
  underflow += other.underflow;
  structural += other.structural;
  felt += other.felt;
}

double exact_adamw_update(const AdamwScalars& s, double parameter, double moment1, double moment2) {
  const double direction = (moment1 / s.bias_correction1) / (std::sqrt(moment2 / s.bias_correction2) + s.eps);
  return -s.learning_rate * (s.weight_decay * parameter + direction);
}

double adamw_step_bound(double beta1, double beta2) {
  const double ratio = beta1 * beta1 / beta2;
  if (ratio >= 1) return std::numeric_limits<double>::infinity();
  return (1 - beta1) / std::sqrt((1 - beta2) * (1 - ratio));
}

void AbsorbedCounts::add(double exact_update, double before, double after) {
  if (exact_update == 0) return;
  ++updates;
  if (before == after) ++absorbed;
}

}  // namespace mixroof
