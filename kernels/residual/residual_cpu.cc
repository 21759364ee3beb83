// Residual add on the CPU: chunks of fp32 in the L1 cache.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/residual/residual_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/add_rows-inl.h"

#if HWY_ONCE
#include <string>

#include "harness/backend/cpu/parallel.h"
#include "kernels/implementation.h"
#include "kernels/residual/residual.h"
#include "kernels/row_buffer.h"

namespace mixroof {
namespace {

HWY_EXPORT(target_name);
HWY_EXPORT(add_rows);

// Fewer elements than this are done before a second worker has started.
constexpr std::int64_t kSerialBelow = 8192;

class ResidualPlan final : public Plan {
 public:
  explicit ResidualPlan(const Problem& problem) : count_(problem.dim("count")), formats_(problem.formats) {}

  std::string implementation() const override { return std::string("mixroof ") + HWY_DYNAMIC_DISPATCH(target_name)(); }

  void run(const Launch& launch) const override {
    parallel_ranges(
        count_, kRowChunk,
        [&](int, std::int64_t begin, std::int64_t end) {
          for_chunks(end - begin, [&](std::int64_t at, std::int64_t n) { add_chunk(launch, begin + at, n); });
        },
        kSerialBelow);
  }

 private:
  void add_chunk(const Launch& launch, std::int64_t first, std::int64_t n) const {
    RowBuffer stream, branch, sum;
    const float* a = load_row(formats_[0], launch.operands[0], first, n, stream);
    const float* b = load_row(formats_[1], launch.operands[1], first, n, branch);
    float* out = row_for_store(formats_[2], launch.operands[2], first, sum);
    HWY_DYNAMIC_DISPATCH(add_rows)(a, b, out, n);
    store_row(formats_[2], out, n, launch.operands[2], first);
  }

  std::int64_t count_;
  std::vector<Format> formats_;
};

constexpr Implementation kImplementations[] = {
    {"residual", "cpu", "mixroof", supports_all, prepare_plan<ResidualPlan>}};

}  // namespace

std::span<const Implementation> residual_cpu() { return kImplementations; }

}  // namespace mixroof
#endif
