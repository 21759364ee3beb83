// Where the operands of norm's variants are, and what its CPU code keeps per worker: shared by the kernel's description
// and the code that uses it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel.h"

namespace mixroof::norm_detail {

/// Number of an operand that a variant does not have.
inline constexpr std::size_t kAbsent = static_cast<std::size_t>(-1);

inline bool is_rms(const Problem& p) { return p.variant.starts_with("rms_"); }
inline bool is_backward(const Problem& p) { return p.variant.ends_with("backward"); }

/// Operand numbers of the forward variants.
struct ForwardOperands {
  explicit ForwardOperands(const Problem& p) : ForwardOperands(is_rms(p)) {}
  std::size_t x = 0, weight = 1, bias, y, mean, rstd;

 private:
  explicit ForwardOperands(bool rms)
      : bias(rms ? kAbsent : 2), y(rms ? 2 : 3), mean(rms ? kAbsent : 4), rstd(rms ? 3 : 5) {}
};

/// Operand numbers of the backward variants.
struct BackwardOperands {
  explicit BackwardOperands(const Problem& p) : BackwardOperands(is_rms(p), p.dim("residual") != 0) {}
  std::size_t dy = 0, x = 1, weight = 2, mean, rstd, dresidual, dx, dweight, dbias;

 private:
  BackwardOperands(bool rms, bool residual)
      : mean(rms ? kAbsent : 3),
        rstd(rms ? 3 : 4),
        dresidual(residual ? rstd + 1 : kAbsent),
        dx(rstd + (residual ? 2 : 1)),
        dweight(dx + 1),
        dbias(rms ? kAbsent : dx + 2) {}
};

/// Scratch of the CPU kernels per worker, in rows of fp32 padded to whole cache lines: copies of what is not fp32, and
/// in backward the worker's partial sums of dweight and dbias.
inline constexpr std::int64_t kForwardRows = 4, kBackwardRows = 7;
inline std::int64_t row_stride(std::int64_t width) { return (width + 15) / 16 * 16; }

/// One row of fp32. RMS norm has neither bias nor mean: both are null.
struct ForwardRow {
  const float *x, *weight, *bias;
  float *y, *mean, *rstd;
};

/// One row of fp32; dweight and dbias are sums that the row is added to. `dresidual` may be null. RMS norm has mean 0 and
/// no dbias.
struct BackwardRow {
  const float *dy, *x, *weight, *dresidual;
  float mean, rstd;
  float *dx, *dweight, *dbias;
};

}  // namespace mixroof::norm_detail
