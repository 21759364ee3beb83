// OpenBLAS, opened by name at run time so that a machine without it loses nothing. Only its OpenMP build is taken: a
// thread pool of its own would spin beside the workers.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "harness/backend/cpu/parallel.h"
#include "harness/backend/cpu/processor_state.h"
#include "kernels/matmul/matmul_layout.h"
#include "kernels/matmul/matmul_library.h"

namespace mixroof {
namespace {

// CBLAS constants.
constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;
constexpr int kOpenMp = 2;  // of openblas_get_parallel()

struct OpenBlas {
  void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a, int lda,
                const float* b, int ldb, float beta, float* c, int ldc) = nullptr;
  void (*set_num_threads)(int) = nullptr;
  std::string version;  // "openblas 0.3.21 Zen sgemm"
  Support support;
};

template <typename Function>
bool find_symbol(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

/// "OpenBLAS 0.3.21 DYNAMIC_ARCH …" → "0.3.21".
std::string second_word(const std::string& text) {
  const std::size_t begin = std::min(text.find(' '), text.size() - 1) + 1;
  return text.substr(begin, text.find(' ', begin) - begin);
}

OpenBlas load_from(const char* file) {
  OpenBlas blas;
  // Never closed: OpenMP workers may still be inside at exit.
  void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  set_processor_state();  // loading can have changed it
  if (!library) {
    blas.support = Support::no("OpenBLAS cannot be opened (install libopenblas0-openmp)");
    return blas;
  }
  int (*get_parallel)() = nullptr;
  char* (*get_config)() = nullptr;
  char* (*get_corename)() = nullptr;
  const bool has_all = find_symbol(library, "cblas_sgemm", blas.sgemm) &&
                       find_symbol(library, "openblas_get_config", get_config) &&
                       find_symbol(library, "openblas_set_num_threads", blas.set_num_threads) &&
                       find_symbol(library, "openblas_get_parallel", get_parallel) &&
                       find_symbol(library, "openblas_get_corename", get_corename);
  if (!has_all)
    blas.support = Support::no("the OpenBLAS found lacks functions of 0.3 (install libopenblas0-openmp)");
  else if (get_parallel() != kOpenMp)
    blas.support = Support::no("the OpenBLAS found has a thread pool of its own (install libopenblas0-openmp)");
  else
    blas.version = fmt::format("openblas {} {} sgemm", second_word(get_config()), get_corename());
  return blas;
}

const OpenBlas& openblas() {
  static const OpenBlas blas = [] {
    OpenBlas debian = load_from("/usr/lib/x86_64-linux-gnu/openblas-openmp/libopenblas.so.0");
    return debian.support ? debian : load_from("libopenblas.so.0");
  }();
  return blas;
}

class OpenBlasPlan : public Plan {
 public:
  explicit OpenBlasPlan(const Problem& problem) : layout_(matmul_layout(problem)), accumulate_(problem.accumulate) {
    openblas().set_num_threads(worker_count());
  }

  void run(const Launch& launch) const override {
    const std::int64_t m = layout_.m, n = layout_.n, k = layout_.k;
    const int bias = layout_.bias;
    if (m == 0 || n == 0) return;
    auto* c = static_cast<float*>(launch.operands[layout_.c]);
    if (bias >= 0) fill_rows(static_cast<const float*>(launch.operands[static_cast<std::size_t>(bias)]), c);
    const bool a_transposed = layout_.variant == MatmulVariant::wgrad, b_transposed = layout_.variant == MatmulVariant::forward;
    // CBLAS wants leading dimensions of 1 or more, also for k = 0.
    const auto leading = [](std::int64_t size) { return static_cast<int>(std::max<std::int64_t>(size, 1)); };
    openblas().sgemm(kRowMajor, a_transposed ? kTranspose : kNoTranspose, b_transposed ? kTranspose : kNoTranspose,
                     static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), 1.0f,
                     static_cast<const float*>(launch.operands[0]), leading(a_transposed ? m : k),
                     static_cast<const float*>(launch.operands[1]), leading(b_transposed ? k : n),
                     bias >= 0 || accumulate_ ? 1.0f : 0.0f, c, leading(n));
  }
  std::string implementation() const override { return openblas().version; }

 private:
  void fill_rows(const float* bias, float* c) const {
    parallel_ranges(layout_.m, 16, [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        std::memcpy(c + i * layout_.n, bias, static_cast<std::size_t>(layout_.n) * sizeof(float));
    });
  }

  MatmulLayout layout_;
  bool accumulate_;
};

std::unique_ptr<Plan> prepare(const Problem& problem, const PrepareContext&) {
  return std::make_unique<OpenBlasPlan>(problem);
}

Support supports(const Problem& problem, const DeviceFacts& facts) {
  for (const Format format : problem.formats)
    if (format != Format::fp32) return Support::no(fmt::format("OpenBLAS multiplies fp32 only, not {}", name(format)));
  for (const auto& [name, size] : problem.shape)
    if (size > std::numeric_limits<int>::max())
      return Support::no(fmt::format("OpenBLAS has 32-bit sizes, {} is {}", name, size));
  if (!openblas().support) return openblas().support;
  static const Support verdict = verify_library(openblas().version, prepare, facts, Format::fp32, Format::fp32);
  return verdict;
}

constexpr Implementation kTable[] = {{"matmul", "cpu", "openblas", supports, prepare}};

}  // namespace

std::span<const Implementation> matmul_openblas() { return kTable; }

}  // namespace mixroof
