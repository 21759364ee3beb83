// Delayed FP8 scaling on the CPU: a few hundred tensors once per window, so plain scalar code.
#include <cmath>
#include <utility>

#include "kernels/fp8_scale/fp8_scale.h"
#include "kernels/implementation.h"
#include "kernels/quantize/scale_rules.h"

namespace mixroof {
namespace {

/// The larger value; a NaN on either side stays.
float larger(float maximum, float value) { return std::isnan(value) || value > maximum ? value : maximum; }

class Fp8ScalePlan : public Plan {
 public:
  explicit Fp8ScalePlan(const Problem& problem)
      : tensors_(problem.dim("tensors")),
        length_(problem.dim("length")),
        margin_(problem.constant("margin")) {}

  void run(const Launch& launch) const override {
    const auto* amax = static_cast<const float*>(launch.operands[0]);
    auto* history = static_cast<float*>(launch.operands[1]);
    const auto* limits = static_cast<const float*>(launch.operands[2]);
    auto* scale = static_cast<float*>(launch.operands[3]);
    auto* counts = static_cast<double*>(launch.operands[4]);
    for (std::int64_t t = 0; t < tensors_; ++t) {
      const ScaleChoice next = scale_of_amax(push(amax[t], history + t), limits[t], scale[t], margin_);
      scale[t] = next.scale;
      counts[0] += next.kept;
      counts[1] += next.clamped;
    }
  }

  std::string implementation() const override { return "mixroof scalar"; }

 private:
  /// Moves one tensor's column down by a row, puts `newest` on top, and returns the column's maximum.
  float push(float newest, float* column) const {
    float maximum = 0;
    for (std::int64_t row = 0; row < length_; ++row) {
      std::swap(newest, column[row * tensors_]);
      maximum = larger(maximum, column[row * tensors_]);
    }
    return maximum;
  }

  std::int64_t tensors_, length_;
  double margin_;
};

}  // namespace

std::span<const Implementation> fp8_scale_cpu() {
  static constexpr Implementation kTable[] = {
      {"fp8_scale", "cpu", "mixroof", supports_all, prepare_plan<Fp8ScalePlan>}};
  return kTable;
}

}  // namespace mixroof
