#include "harness/backend/cpu/processor_state.h"

#include <cpuid.h>
#include <xmmintrin.h>

#include <array>
#include <cstring>

namespace mixroof {
namespace {

constexpr unsigned kStrictMxcsr = 0x1f80;    // power-on value: all exceptions masked, nearest, FTZ and DAZ off
constexpr unsigned kControlBits = 0xffc0;    // without the sticky exception flags

}  // namespace

void set_processor_state() {
  if (!processor_state_is_strict()) _mm_setcsr(kStrictMxcsr);
}

bool processor_state_is_strict() { return (_mm_getcsr() & kControlBits) == kStrictMxcsr; }

std::vector<std::string> instruction_paths() {
  std::vector<std::string> paths;
  if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl")) paths.emplace_back("avx512_bf16");
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    paths.emplace_back("avx512");
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) paths.emplace_back("avx2");
  paths.emplace_back("sse2");
  return paths;
}

std::string processor_name() {
  std::array<unsigned, 12> words{};
  for (unsigned leaf = 0; leaf < 3; ++leaf)
    if (!__get_cpuid(0x80000002 + leaf, &words[4 * leaf], &words[4 * leaf + 1], &words[4 * leaf + 2],
                     &words[4 * leaf + 3]))
      return "x86-64";
  std::array<char, sizeof words + 1> text{};
  std::memcpy(text.data(), words.data(), sizeof words);
  std::string brand = text.data();
  brand.erase(0, brand.find_first_not_of(' '));
  brand.erase(brand.find_last_not_of(' ') + 1);
  return brand;
}

}  // namespace mixroof
