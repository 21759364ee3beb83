// Rotary position embedding on the CPU: rows shared among workers, a row's queries and keys turned in place where they are
// fp32, else through a copy in workspace. The plan's table holds, for each position, the cosines of half a head and then
// its sines (negative ones in backward, which turns the other way).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rope/rope_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/vector-inl.h"

#include <cmath>
#include <string>
#include <vector>

#include "harness/backend/cpu/parallel.h"
#include "kernels/implementation.h"
#include "kernels/rope/layout.h"
#include "kernels/rope/rope.h"
#include "kernels/row_buffer.h"

HWY_BEFORE_NAMESPACE();
namespace mixroof {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

/// Turns `heads` heads of 2·half elements that follow each other in `x`.
void turn_heads(float* HWY_RESTRICT x, std::int64_t heads, std::int64_t half, const float* HWY_RESTRICT cosines,
                const float* HWY_RESTRICT sines) {
  for (std::int64_t head = 0; head < heads; ++head) {
    float* first = x + head * 2 * half;
    float* second = first + half;
    for_each_vector(half, [=](auto d, std::int64_t j) HWY_ATTR {
      const auto cosine = hn::LoadU(d, cosines + j), sine = hn::LoadU(d, sines + j);
      const auto a = hn::LoadU(d, first + j), b = hn::LoadU(d, second + j);
      hn::StoreU(hn::NegMulAdd(b, sine, hn::Mul(a, cosine)), d, first + j);
      hn::StoreU(hn::MulAdd(a, sine, hn::Mul(b, cosine)), d, second + j);
    });
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mixroof
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mixroof {
namespace {

HWY_EXPORT(target_name);
HWY_EXPORT(turn_heads);

// Elements below which a second worker is not worth waking.
constexpr std::int64_t kSerialElements = 8192;

std::vector<float> turning_table(const RopeLayout& layout, double theta, bool is_backward) {
  std::vector<float> table(static_cast<std::size_t>(layout.positions() * layout.head_dim));
  const double direction = is_backward ? -1 : 1;
  for (std::int64_t j = 0; j < layout.half(); ++j) {
    const double rate = direction * rope_rate(j, layout.head_dim, theta);
    for (std::int64_t position = 0; position < layout.positions(); ++position) {
      float* cosine = table.data() + position * layout.head_dim + j;
      cosine[0] = static_cast<float>(std::cos(static_cast<double>(position) * rate));
      cosine[layout.half()] = static_cast<float>(std::sin(static_cast<double>(position) * rate));
    }
  }
  return table;
}

class RopePlan final : public Plan {
 public:
  explicit RopePlan(const Problem& p)
      : layout_(p),
        io_(p.formats.back()),
        table_(turning_table(layout_, p.constant("theta"), p.variant == "backward")) {}

  std::string implementation() const override { return std::string("mixroof ") + HWY_DYNAMIC_DISPATCH(target_name)(); }

  void run(const Launch& launch) const override {
    parallel_ranges(
        layout_.rows(), 1,
        [&](int worker, std::int64_t begin, std::int64_t end) { run_rows(launch, worker, begin, end); },
        kSerialElements / layout_.turned());
  }

 private:
  void run_rows(const Launch& launch, int worker, std::int64_t begin, std::int64_t end) const {
    float* scratch = static_cast<float*>(launch.workspace) + worker * layout_.scratch_floats(io_);
    void* tensor = launch.operands[layout_.turned_operand()];
    const auto turn = HWY_DYNAMIC_DISPATCH(turn_heads);
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t first = row * layout_.stride();
      const float* angles = table_.data() + position_of(launch, row) * layout_.head_dim;
      float* x = row_for_store(io_, tensor, first, scratch);
      load_row(io_, tensor, first, layout_.turned(), x);
      turn(x, layout_.turned_heads(), layout_.half(), angles, angles + layout_.half());
      store_row(io_, x, layout_.turned(), tensor, first);
    }
  }

  std::int64_t position_of(const Launch& launch, std::int64_t row) const {
    return layout_.packed ? static_cast<const std::int32_t*>(launch.operands[0])[row] : row % layout_.seq;
  }

  RopeLayout layout_;
  Format io_;
  std::vector<float> table_;
};

constexpr Implementation kImplementations[] = {{"rope", "cpu", "mixroof", supports_all, prepare_plan<RopePlan>}};

}  // namespace

std::span<const Implementation> rope_cpu() { return kImplementations; }

}  // namespace mixroof
#endif
