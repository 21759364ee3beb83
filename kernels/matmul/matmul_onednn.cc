// oneDNN's matmul primitive: fp32 everywhere, bf16 with fp32 sums where the processor multiplies bf16 itself. The math
// mode is pinned to strict for each primitive, so that ONEDNN_DEFAULT_FPMATH_MODE cannot turn fp32 into bf16.
#include <fmt/format.h>

#include <dnnl.hpp>

#include "harness/backend/cpu/processor_state.h"
#include "kernels/matmul/matmul_layout.h"
#include "kernels/matmul/matmul_library.h"

namespace mixroof {
namespace {

using dnnl::memory;

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::data_type data_type(Format format) {
  return format == Format::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

/// A matrix of `rows` x `columns` as the product sees it; `transposed` when it is stored the other way round.
memory::desc matrix(std::int64_t rows, std::int64_t columns, Format format, bool transposed = false) {
  return {{rows, columns}, data_type(format), transposed ? memory::dims{1, rows} : memory::dims{columns, 1}};
}

// Scratchpads belong to the primitive (library memory, from creation to the end of the plan): their size depends on the
// code path that the library takes on this processor, so a plan made elsewhere could not know it.
dnnl::primitive_attr attributes(bool accumulate) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::library);
  attr.set_fpmath_mode(dnnl::fpmath_mode::strict);
  if (accumulate) {
    dnnl::post_ops add_to_output;
    add_to_output.append_sum(1.0f);
    attr.set_post_ops(add_to_output);
  }
  return attr;
}

class OneDnnPlan : public Plan {
 public:
  explicit OneDnnPlan(const Problem& problem) : layout_(matmul_layout(problem)), stream_(cpu_engine()) {
    const std::int64_t m = layout_.m, n = layout_.n, k = layout_.k;
    const MatmulVariant variant = layout_.variant;
    const int bias = layout_.bias;
    const std::size_t c = layout_.c;
    const memory::desc a_desc = matrix(m, k, problem.formats[0], variant == MatmulVariant::wgrad);
    const memory::desc b_desc = matrix(k, n, problem.formats[1], variant == MatmulVariant::forward);
    const memory::desc c_desc = matrix(m, n, problem.formats[c]);
    bind(DNNL_ARG_SRC, a_desc, 0);
    bind(DNNL_ARG_WEIGHTS, b_desc, 1);
    bind(DNNL_ARG_DST, c_desc, c);
    dnnl::matmul::desc desc(a_desc, b_desc, c_desc);
    if (bias >= 0) {
      const auto index = static_cast<std::size_t>(bias);
      const memory::desc bias_desc = matrix(1, n, problem.formats[index]);
      bind(DNNL_ARG_BIAS, bias_desc, index);
      desc = dnnl::matmul::desc(a_desc, b_desc, bias_desc, c_desc);
    }
    const dnnl::matmul::primitive_desc primitive_desc(desc, attributes(problem.accumulate), cpu_engine());
    primitive_ = dnnl::matmul(primitive_desc);
    const dnnl_version_t* version = dnnl_version();
    implementation_ = fmt::format("onednn {}.{}.{} {}", version->major, version->minor, version->patch,
                                  primitive_desc.impl_info_str());
    set_processor_state();  // generated code and library loading may have changed it
  }

  void run(const Launch& launch) const override {
    for (const Binding& binding : bindings_) binding.value.set_data_handle(launch.operands[binding.operand]);
    primitive_.execute(stream_, arguments_);
  }
  std::string implementation() const override { return implementation_; }

 private:
  struct Binding {
    memory value;
    std::size_t operand;
  };

  void bind(int argument, const memory::desc& desc, std::size_t operand) {
    bindings_.push_back({memory(desc, cpu_engine(), nullptr), operand});
    arguments_.insert({argument, bindings_.back().value});
  }

  MatmulLayout layout_;
  dnnl::stream stream_;
  dnnl::primitive primitive_;
  std::vector<Binding> bindings_;
  std::unordered_map<int, memory> arguments_;
  std::string implementation_;
};

std::unique_ptr<Plan> prepare(const Problem& problem, const PrepareContext&) {
  return std::make_unique<OneDnnPlan>(problem);
}

Support verdict(const DeviceFacts& facts, Format inputs, Format output) {
  return verify_library("oneDNN", prepare, facts, inputs, output);
}

Support supports(const Problem& problem, const DeviceFacts& facts) {
  const Format a = problem.formats.at(0), b = problem.formats.at(1), c = problem.formats.back();
  if (a != b || (a != Format::fp32 && a != Format::bf16))
    return Support::no(fmt::format("oneDNN multiplies fp32 or bf16 here, not {} x {}", name(a), name(b)));
  for (const Format format : problem.formats)
    if (format != Format::fp32 && (format != Format::bf16 || a == Format::fp32))
      return Support::no(fmt::format("oneDNN has no {} product with {} operands", name(a), name(format)));
  if (a == Format::bf16 && !facts.has_path("avx512_bf16") && !facts.has_path("amx"))
    return Support::no("oneDNN multiplies bf16 on processors with AVX512_BF16 or AMX only");
  for (const auto& [name, size] : problem.shape)
    if (size == 0 && name != "bias" && name != "accumulate") return Support::no("an empty product is left to mixroof");
  if (a == Format::fp32) {
    static const Support fp32 = verdict(facts, Format::fp32, Format::fp32);
    return fp32;
  }
  static const Support bf16_to_bf16 = verdict(facts, Format::bf16, Format::bf16);
  static const Support bf16_to_fp32 = verdict(facts, Format::bf16, Format::fp32);
  return c == Format::bf16 ? bf16_to_bf16 : bf16_to_fp32;
}

constexpr Implementation kTable[] = {{"matmul", "cpu", "onednn", supports, prepare}};

}  // namespace

std::span<const Implementation> matmul_onednn() { return kTable; }

}  // namespace mixroof
