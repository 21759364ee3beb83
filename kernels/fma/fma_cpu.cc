// Multiply-adds with Highway: a block of vectors stays in registers for all its steps, with enough of them in flight to
// hide the latency of the multiply-add units.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/fma/fma_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/vector-inl.h"

#include <fmt/format.h>

#include "harness/backend/cpu/parallel.h"
#include "kernels/fma/fma.h"
#include "kernels/implementation.h"

HWY_BEFORE_NAMESPACE();
namespace mixroof {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Two units of latency 4 or 5 need 8 to 10 vectors; 12 leave room for the two constants among 16 registers.
constexpr int64_t kFmaVectors = 12;

template <class D>
HWY_INLINE void fma_block(D d, const float* HWY_RESTRICT x, float* HWY_RESTRICT y, int64_t fmas) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto half = hn::Set(d, 0.5f), quarter = hn::Set(d, 0.25f);
  auto v0 = hn::LoadU(d, x), v1 = hn::LoadU(d, x + lanes), v2 = hn::LoadU(d, x + 2 * lanes);
  auto v3 = hn::LoadU(d, x + 3 * lanes), v4 = hn::LoadU(d, x + 4 * lanes), v5 = hn::LoadU(d, x + 5 * lanes);
  auto v6 = hn::LoadU(d, x + 6 * lanes), v7 = hn::LoadU(d, x + 7 * lanes), v8 = hn::LoadU(d, x + 8 * lanes);
  auto v9 = hn::LoadU(d, x + 9 * lanes), v10 = hn::LoadU(d, x + 10 * lanes), v11 = hn::LoadU(d, x + 11 * lanes);
  for (int64_t step = 0; step < fmas; ++step) {
    v0 = hn::MulAdd(v0, half, quarter);
    v1 = hn::MulAdd(v1, half, quarter);
    v2 = hn::MulAdd(v2, half, quarter);
    v3 = hn::MulAdd(v3, half, quarter);
    v4 = hn::MulAdd(v4, half, quarter);
    v5 = hn::MulAdd(v5, half, quarter);
    v6 = hn::MulAdd(v6, half, quarter);
    v7 = hn::MulAdd(v7, half, quarter);
    v8 = hn::MulAdd(v8, half, quarter);
    v9 = hn::MulAdd(v9, half, quarter);
    v10 = hn::MulAdd(v10, half, quarter);
    v11 = hn::MulAdd(v11, half, quarter);
  }
  hn::StoreU(v0, d, y);
  hn::StoreU(v1, d, y + lanes);
  hn::StoreU(v2, d, y + 2 * lanes);
  hn::StoreU(v3, d, y + 3 * lanes);
  hn::StoreU(v4, d, y + 4 * lanes);
  hn::StoreU(v5, d, y + 5 * lanes);
  hn::StoreU(v6, d, y + 6 * lanes);
  hn::StoreU(v7, d, y + 7 * lanes);
  hn::StoreU(v8, d, y + 8 * lanes);
  hn::StoreU(v9, d, y + 9 * lanes);
  hn::StoreU(v10, d, y + 10 * lanes);
  hn::StoreU(v11, d, y + 11 * lanes);
}

void fma_sweep(const float* x, float* y, int64_t count, int64_t fmas) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const int64_t block = kFmaVectors * static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + block <= count; i += block) fma_block(d, x + i, y + i, fmas);
  for (; i + kFmaVectors <= count; i += kFmaVectors) fma_block(one, x + i, y + i, fmas);
  const auto half = hn::Set(one, 0.5f), quarter = hn::Set(one, 0.25f);
  for (; i < count; ++i) {
    auto v = hn::LoadU(one, x + i);
    for (int64_t step = 0; step < fmas; ++step) v = hn::MulAdd(v, half, quarter);
    hn::StoreU(v, one, y + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mixroof
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mixroof {

HWY_EXPORT(fma_sweep);
HWY_EXPORT(target_name);

namespace {

constexpr std::int64_t kGrain = 192;               // values: one block of the widest vectors
constexpr std::int64_t kSerialBelowSteps = 65536;  // multiply-adds: less work ends before the workers would wake

class FmaPlan : public Plan {
 public:
  explicit FmaPlan(const Problem& problem) : count_(problem.dim("count")), fmas_(problem.dim("fmas")) {}

  void run(const Launch& launch) const override {
    const auto* x = static_cast<const float*>(launch.operands[0]);
    auto* y = static_cast<float*>(launch.operands[1]);
    parallel_ranges(
        count_, kGrain,
        [&](int, std::int64_t begin, std::int64_t end) {
          HWY_DYNAMIC_DISPATCH(fma_sweep)(x + begin, y + begin, end - begin, fmas_);
        },
        kSerialBelowSteps / (fmas_ + 1));
  }

  std::string implementation() const override { return fmt::format("mixroof {}", HWY_DYNAMIC_DISPATCH(target_name)()); }

 private:
  std::int64_t count_, fmas_;
};

}  // namespace

std::span<const Implementation> fma_cpu() {
  static constexpr Implementation table[] = {{"fma", "cpu", "mixroof", supports_all, prepare_plan<FmaPlan>}};
  return table;
}

}  // namespace mixroof
#endif
