// Casts on the CPU: the codecs' array functions, shared among workers.
#include <string>

#include "harness/backend/cpu/parallel.h"
#include "harness/numeric/codec.h"
#include "kernels/cast/cast.h"
#include "kernels/implementation.h"
#include "kernels/row_buffer.h"

namespace mixroof {
namespace {

// Fewer elements than this are done before a second worker has started.
constexpr std::int64_t kSerialBelow = 8192;

class CastPlan final : public Plan {
 public:
  explicit CastPlan(const Problem& problem)
      : count_(problem.dim("count")), in_(problem.formats[0]), out_(problem.formats[1]) {}

  /// The path of the format that is not fp32: that codec does the work.
  std::string implementation() const override { return "mixroof " + codec_path(out_ == Format::fp32 ? in_ : out_); }

  void run(const Launch& launch) const override {
    parallel_ranges(
        count_, kRowChunk,
        [&](int, std::int64_t begin, std::int64_t end) {
          for_chunks(end - begin, [&](std::int64_t at, std::int64_t n) { cast_chunk(launch, begin + at, n); });
        },
        kSerialBelow);
  }

 private:
  void cast_chunk(const Launch& launch, std::int64_t first, std::int64_t n) const {
    void* out = element_address(out_, launch.operands[1], first);
    if (out_ == Format::fp32) {
      decode(in_, element_address(in_, launch.operands[0], first), static_cast<float*>(out), n);
      return;
    }
    RowBuffer buffer;
    encode(out_, load_row(in_, launch.operands[0], first, n, buffer), out, n);
  }

  std::int64_t count_;
  Format in_, out_;
};

/// fp64 and int32 do not pass through fp32 unchanged, so the result could be rounded twice.
Support supports(const Problem& problem, const DeviceFacts&) {
  for (const Format format : problem.formats)
    if (format == Format::fp64 || format == Format::int32)
      return Support::no("cast converts between fp32 and narrower formats, not " + std::string(name(format)));
  return {};
}

constexpr Implementation kImplementations[] = {{"cast", "cpu", "mixroof", supports, prepare_plan<CastPlan>}};

}  // namespace

std::span<const Implementation> cast_cpu() { return kImplementations; }

}  // namespace mixroof
