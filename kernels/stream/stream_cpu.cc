// Streams with Highway, four vectors at a time; each worker has one contiguous slice.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/stream/stream_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>
#include "kernels/vector-inl.h"

#include <fmt/format.h>

#include "harness/backend/cpu/parallel.h"
#include "kernels/implementation.h"
#include "kernels/stream/stream.h"
#include "kernels/stream/stream_cpu.h"

HWY_BEFORE_NAMESPACE();
namespace mixroof {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct StreamCopy {
  template <class D>
  static HWY_INLINE hn::Vec<D> value(D d, const float* a, const float*) {
    return hn::LoadU(d, a);
  }
};
struct StreamScale {
  template <class D>
  static HWY_INLINE hn::Vec<D> value(D d, const float* a, const float*) {
    return hn::Mul(hn::Set(d, 3.0f), hn::LoadU(d, a));
  }
};
struct StreamAdd {
  template <class D>
  static HWY_INLINE hn::Vec<D> value(D d, const float* a, const float* b) {
    return hn::Add(hn::LoadU(d, a), hn::LoadU(d, b));
  }
};
struct StreamTriad {
  template <class D>
  static HWY_INLINE hn::Vec<D> value(D d, const float* a, const float* b) {
    return hn::MulAdd(hn::Set(d, 3.0f), hn::LoadU(d, b), hn::LoadU(d, a));
  }
};
struct StreamWrite {
  template <class D>
  static HWY_INLINE hn::Vec<D> value(D d, const float*, const float*) {
    return hn::Set(d, 1.0f);
  }
};

template <bool kNontemporal, class D>
HWY_INLINE void stream_put(hn::Vec<D> v, D d, float* c) {
  if constexpr (kNontemporal)
    hn::Stream(v, d, c);
  else
    hn::StoreU(v, d, c);
}

template <class Op, bool kNontemporal>
HWY_NOINLINE void stream_map(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, float* HWY_RESTRICT c,
                             int64_t count) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  // Nontemporal stores must be aligned to the vector.
  if constexpr (kNontemporal)
    for (; i < count && reinterpret_cast<uintptr_t>(c + i) % (hn::Lanes(d) * sizeof(float)) != 0; ++i)
      hn::StoreU(Op::value(one, a + i, b + i), one, c + i);
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto v0 = Op::value(d, a + i, b + i);
    const auto v1 = Op::value(d, a + i + lanes, b + i + lanes);
    const auto v2 = Op::value(d, a + i + 2 * lanes, b + i + 2 * lanes);
    const auto v3 = Op::value(d, a + i + 3 * lanes, b + i + 3 * lanes);
    stream_put<kNontemporal>(v0, d, c + i);
    stream_put<kNontemporal>(v1, d, c + i + lanes);
    stream_put<kNontemporal>(v2, d, c + i + 2 * lanes);
    stream_put<kNontemporal>(v3, d, c + i + 3 * lanes);
  }
  for (; i < count; ++i) hn::StoreU(Op::value(one, a + i, b + i), one, c + i);
  if constexpr (kNontemporal) hwy::FlushStream();
}

template <class Op>
void stream_any(bool nontemporal, const float* a, const float* b, float* c, int64_t count) {
  if (nontemporal)
    stream_map<Op, true>(a, b, c, count);
  else
    stream_map<Op, false>(a, b, c, count);
}

// Eight independent sums hide the latency of the additions.
HWY_NOINLINE float stream_sum(const float* HWY_RESTRICT a, int64_t count) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
  int64_t i = 0;
  for (; i + 8 * lanes <= count; i += 8 * lanes) {
    s0 = hn::Add(s0, hn::LoadU(d, a + i));
    s1 = hn::Add(s1, hn::LoadU(d, a + i + lanes));
    s2 = hn::Add(s2, hn::LoadU(d, a + i + 2 * lanes));
    s3 = hn::Add(s3, hn::LoadU(d, a + i + 3 * lanes));
    s4 = hn::Add(s4, hn::LoadU(d, a + i + 4 * lanes));
    s5 = hn::Add(s5, hn::LoadU(d, a + i + 5 * lanes));
    s6 = hn::Add(s6, hn::LoadU(d, a + i + 6 * lanes));
    s7 = hn::Add(s7, hn::LoadU(d, a + i + 7 * lanes));
  }
  const auto s = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(hn::Add(s4, s5), hn::Add(s6, s7)));
  float sum = hn::GetLane(hn::SumOfLanes(d, s));
  for (; i < count; ++i) sum += a[i];
  return sum;
}

float stream_pass(StreamOp op, bool nontemporal, const float* a, const float* b, float* c, int64_t count) {
  switch (op) {
    case StreamOp::read:
      return stream_sum(a, count);
    case StreamOp::copy:
      stream_any<StreamCopy>(nontemporal, a, b, c, count);
      break;
    case StreamOp::scale:
      stream_any<StreamScale>(nontemporal, a, b, c, count);
      break;
    case StreamOp::add:
      stream_any<StreamAdd>(nontemporal, a, b, c, count);
      break;
    case StreamOp::triad:
      stream_any<StreamTriad>(nontemporal, a, b, c, count);
      break;
    case StreamOp::write:
      stream_any<StreamWrite>(nontemporal, a, b, c, count);
      break;
  }
  return 0;
}

float stream_passes(StreamOp op, bool nontemporal, const float* a, const float* b, float* c, int64_t count,
                    int64_t passes) {
  float sum = 0;
  for (int64_t pass = 0; pass < passes; ++pass) {
    sum = stream_pass(op, nontemporal, a, b, c, count);
    // Each pass must touch memory again.
    asm volatile("" : : : "memory");
  }
  return sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace mixroof
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mixroof {

HWY_EXPORT(stream_passes);
HWY_EXPORT(target_name);

float stream_slice(StreamOp op, bool nontemporal, const float* a, const float* b, float* c, std::int64_t count,
                   std::int64_t passes) {
  return HWY_DYNAMIC_DISPATCH(stream_passes)(op, nontemporal, a, b, c, count, passes);
}

std::string_view stream_path() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

namespace {

constexpr std::int64_t kGrain = 64;          // values: four cache lines, so that no two workers share one
constexpr std::int64_t kSerialBelow = 8192;  // values: shorter streams end before the workers would wake

const float* at(const float* array, std::int64_t i) { return array ? array + i : nullptr; }

class StreamPlan : public Plan {
 public:
  explicit StreamPlan(const Problem& problem)
      : op_(find_stream_op(problem.variant)),
        nontemporal_(problem.dim("nontemporal") != 0),
        count_(problem.dim("count")) {}

  void run(const Launch& launch) const override {
    if (op_ == StreamOp::read) return read(launch);
    const auto* a = op_ == StreamOp::write ? nullptr : static_cast<const float*>(launch.operands[0]);
    const auto* b = launch.operands.size() == 3 ? static_cast<const float*>(launch.operands[1]) : nullptr;
    auto* c = static_cast<float*>(launch.operands.back());
    parallel_ranges(
        count_, kGrain,
        [&](int, std::int64_t begin, std::int64_t end) {
          stream_slice(op_, nontemporal_, at(a, begin), at(b, begin), c + begin, end - begin);
        },
        kSerialBelow);
  }

  std::string implementation() const override {
    return fmt::format("mixroof {}{}", stream_path(), nontemporal_ ? " nontemporal" : "");
  }

 private:
  void read(const Launch& launch) const {
    const auto* a = static_cast<const float*>(launch.operands[0]);
    auto* partials = static_cast<unsigned char*>(launch.workspace);
    const auto partial = [&](int worker) { return reinterpret_cast<float*>(partials + worker * kStreamPartialBytes); };
    for (int worker = 0; worker < worker_count(); ++worker) *partial(worker) = 0;
    parallel_ranges(
        count_, kGrain,
        [&](int worker, std::int64_t begin, std::int64_t end) {
          *partial(worker) = stream_slice(StreamOp::read, false, a + begin, nullptr, nullptr, end - begin);
        },
        kSerialBelow);
    // In the order of the workers, so that the sum repeats bit for bit.
    float sum = 0;
    for (int worker = 0; worker < worker_count(); ++worker) sum += *partial(worker);
    *static_cast<float*>(launch.operands[1]) = sum;
  }

  StreamOp op_;
  bool nontemporal_;
  std::int64_t count_;
};

}  // namespace

std::span<const Implementation> stream_cpu() {
  static constexpr Implementation table[] = {{"stream", "cpu", "mixroof", supports_all, prepare_plan<StreamPlan>}};
  return table;
}

}  // namespace mixroof
#endif
