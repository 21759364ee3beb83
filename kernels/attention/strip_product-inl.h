// Small matrix products in registers, once per Highway target: C[rows, columns] (+)= A[rows, k]·B[k, columns] for
// strips of up to kStripRows rows. A is read element by element through two strides, so that the same code takes a
// transposed A; B and C are row-major with whole vectors per row.
#if defined(MIXROOF_ATTENTION_STRIP_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MIXROOF_ATTENTION_STRIP_PRODUCT_INL_H_
#undef MIXROOF_ATTENTION_STRIP_PRODUCT_INL_H_
#else
#define MIXROOF_ATTENTION_STRIP_PRODUCT_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace mixroof {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Six rows by two vectors: 12 accumulators, two vectors of B and one broadcast fill the 16 registers of AVX2.
constexpr std::int64_t kStripRows = 6;

/// Left-hand side: element (r, k) is at data[r*row_step + k*k_step].
struct StripInput {
  const float* data;
  std::int64_t row_step, k_step;
};
struct Matrix {
  float* data;
  std::int64_t stride;
};
struct ConstMatrix {
  const float* data;
  std::int64_t stride;
};

template <int kRows, int kVectors, class D>
HWY_INLINE void block_product(D d, StripInput a, ConstMatrix b, std::int64_t k, Matrix c, bool add) {
  using V = hn::Vec<D>;
  constexpr std::int64_t kLanes = HWY_LANES(float);
  V sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[r][v] = add ? hn::LoadU(d, c.data + r * c.stride + v * kLanes) : hn::Zero(d);
  for (std::int64_t i = 0; i < k; ++i) {
    V right[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) right[v] = hn::LoadU(d, b.data + i * b.stride + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V left = hn::Set(d, a.data[r * a.row_step + i * a.k_step]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(left, right[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, c.data + r * c.stride + v * kLanes);
}

/// `columns` is a multiple of the vector length.
template <int kRows>
HWY_NOINLINE void fixed_strip_product(StripInput a, ConstMatrix b, std::int64_t k, Matrix c, std::int64_t columns,
                                      bool add) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t at = 0;
  for (; at + 2 * lanes <= columns; at += 2 * lanes)
    block_product<kRows, 2>(d, a, {b.data + at, b.stride}, k, {c.data + at, c.stride}, add);
  if (at < columns) block_product<kRows, 1>(d, a, {b.data + at, b.stride}, k, {c.data + at, c.stride}, add);
}

/// C[rows, columns] = A·B, or += with `add`; rows at most kStripRows.
inline void strip_product(std::int64_t rows, StripInput a, ConstMatrix b, std::int64_t k, Matrix c,
                          std::int64_t columns, bool add) {
  switch (rows) {
    case 6:
      return fixed_strip_product<6>(a, b, k, c, columns, add);
    case 5:
      return fixed_strip_product<5>(a, b, k, c, columns, add);
    case 4:
      return fixed_strip_product<4>(a, b, k, c, columns, add);
    case 3:
      return fixed_strip_product<3>(a, b, k, c, columns, add);
    case 2:
      return fixed_strip_product<2>(a, b, k, c, columns, add);
    default:
      return fixed_strip_product<1>(a, b, k, c, columns, add);
  }
}

/// Calls f(row, rows) for the strips of `count` rows.
template <class F>
HWY_INLINE void for_strips(std::int64_t count, F f) {
  for (std::int64_t row = 0; row < count; row += kStripRows)
    f(row, count - row < kStripRows ? count - row : kStripRows);
}

}  // namespace HWY_NAMESPACE
}  // namespace mixroof
HWY_AFTER_NAMESPACE();

#endif  // MIXROOF_ATTENTION_STRIP_PRODUCT_INL_H_
