// Mutants that the check of this kernel catches: the last column not written, the accumulate flag ignored, one k-term
// dropped, the bias dropped, one scale used twice, partial sums rounded to bf16, an input read transposed.
#include "kernels/matmul/matmul.h"

#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "harness/backend/cpu/parallel.h"
#include "harness/numeric/codec.h"
#include "kernels/kernel_test.h"
#include "kernels/matmul/matmul_gemm.h"
#include "kernels/matmul/matmul_library.h"

namespace mixroof {
namespace {

using enum MatmulVariant;
using enum Format;

/// 64-byte aligned scratch for gemm.
struct Workspace {
  explicit Workspace(const GemmBlocking& blocking)
      : floats(static_cast<std::size_t>(gemm_workspace_bytes(blocking)) / 4 + 16) {}
  void* data() { return reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(floats.data()) + 63) / 64 * 64); }
  std::vector<float> floats;
};

std::vector<float> normals(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

/// c of an fp32 product a[m,k] · b[n,k]ᵀ.
std::vector<float> multiply_fp32(const MatmulShape& s, const std::vector<float>& a, const std::vector<float>& b,
                                 int threads) {
  std::vector<float> c(static_cast<std::size_t>(s.m * s.n));
  const GemmBlocking blocking = gemm_blocking(s.m, s.n, s.k, threads);
  Workspace workspace(blocking);
  gemm(
      {.m = s.m, .n = s.n, .k = s.k, .a = {a.data(), fp32, s.k, true}, .b = {b.data(), fp32, s.k, true}, .c = c.data()},
      blocking, workspace.data());
  return c;
}

TEST(Matmul, EveryRecipeAndImplementation_OnEveryInstructionSet_MatchesTheReference) {
  const auto backend = make_cpu_backend(2);
  for_each_target([&] {
    const CaseChecks checks = expect_cases_pass(matmul_kernel(), *backend, matmul_kernel().cases());
    EXPECT_THAT(checks.implementations, testing::Contains("mixroof"));
  });
}

TEST(Matmul, InstructionSets_AreReallySwitched) {
  std::set<std::string> paths;
  for_each_target([&] { paths.insert(gemm_path()); });
  EXPECT_EQ(paths.size(), hwy::SupportedAndGeneratedTargets().size());
}

TEST(Matmul, ManyWorkers_SplitRowsAndColumns_MatchTheReference) {
  const auto backend = make_cpu_backend(7);
  // 3.4 million multiply-adds: 6 parts; the tall ones are split along their longer side.
  const std::vector<Case> cases = {{"forward", {{"m", 101}, {"n", 131}, {"k", 259}, {"bias", 1}}},
                                   {"dgrad", {{"m", 13}, {"n", 1003}, {"k", 259}}},
                                   {"wgrad", {{"m", 1003}, {"n", 13}, {"k", 259}, {"accumulate", 1}}}};
  EXPECT_GT(expect_cases_pass(matmul_kernel(), *backend, cases).count, 0);
  set_worker_count(1);
}

TEST(Matmul, Results_AreTheSameBitsForAnyNumberOfWorkers) {
  const MatmulShape s{130, 517, 531};
  const std::vector<float> a = normals(s.m * s.k, 1), b = normals(s.n * s.k, 2);
  const std::vector<float> one = multiply_fp32(s, a, b, 1);
  for (const int threads : {2, 3, 8}) {
    set_worker_count(threads);
    EXPECT_EQ(multiply_fp32(s, a, b, threads), one) << threads;
  }
  set_worker_count(1);  // fewer workers than the plan has parts
  EXPECT_EQ(multiply_fp32(s, a, b, 8), one);
}

TEST(Matmul, FP8_3_Cost_IsExactPast32Bits) {
  // 2·1000·712·50257 = 71,565,968,000.
  const Problem p = matmul_problem(forward, {1000, 50257, 712}, fp8_e4m3, fp8_e4m3, bf16, true, bf16);
  const Cost cost = matmul_kernel().cost(p);
  EXPECT_EQ(cost.useful_flops[static_cast<std::size_t>(fp8_e4m3)], 71'565'968'000);
  EXPECT_EQ(cost.padded_flops[static_cast<std::size_t>(fp8_e4m3)], 71'565'968'000);
  EXPECT_EQ(cost.total_useful_flops(), 71'565'968'000);
  // a 1000·712 + b 50257·712 + bias 2·50257 + two scales of 4 = 712000 + 35782984 + 100514 + 8.
  EXPECT_EQ(cost.bytes_read, 36'595'506);
  EXPECT_EQ(cost.bytes_written, 100'514'000);  // 2·1000·50257
}

// Useful FLOPs take the true sizes, padded ones those that a device asks for, each with its own inner dimension; sizes that are
// multiples already are left alone.
TEST(Matmul, FP8_3_PaddedFlops_AreThoseOfTheMultiplesAskedFor) {
  const auto padded = [](MatmulVariant variant, const MatmulShape& shape, const std::array<std::int64_t, 3>& multiples) {
    const Problem p = with_multiples(matmul_problem(variant, shape, fp8_e4m3, fp8_e4m3, bf16), multiples);
    const Cost cost = matmul_kernel().cost(p);
    EXPECT_EQ(cost.useful_flops[static_cast<std::size_t>(fp8_e4m3)], 2 * shape.m * shape.n * shape.k);
    return cost.padded_flops[static_cast<std::size_t>(fp8_e4m3)];
  };
  const std::array<std::int64_t, 3> all = {16, 16, 16};
  EXPECT_EQ(padded(forward, {1000, 50257, 712}, all), 72'970'813'440);
  EXPECT_EQ(padded(forward, {1000, 50257, 712}, {1, 1, 1}), 71'565'968'000);
  EXPECT_EQ(padded(forward, {1000, 50257, 712}, {1, 16, 1}), 2 * 1000LL * 50272 * 712) << "only where it is asked for";
  EXPECT_EQ(padded(dgrad, {1000, 712, 50257}, all), 2 * 1008LL * 720 * 50272) << "the vocabulary is the inner dimension";
  EXPECT_EQ(padded(wgrad, {50257, 712, 1000}, all), 2 * 50272LL * 720 * 1008) << "the tokens are the inner dimension";
  EXPECT_EQ(padded(forward, {2048, 896, 767}, all), 2 * 2048LL * 896 * 768) << "2048 and 896 are not to blame";
  const Problem plain = matmul_problem(forward, {1000, 50257, 712}, bf16, bf16, bf16);
  EXPECT_EQ(with_multiples(plain, all), plain) << "nothing is FP8";
}

TEST(Matmul, BlockScales_MultiplyTheirBlocks) {
  // 1·1·(2·3) over the first 128 of k, 1·1·(5·7) over the other 72.
  std::vector<float> scale_a = {2, 5}, scale_b = {3, 7};
  std::vector<std::uint8_t> ones(200, encode_fp8_e4m3(1));
  float c = 0;
  const Problem p = matmul_problem(forward, {1, 1, 200}, fp8_e4m3, fp8_e4m3, fp32, false, fp32, false, {128, fp32});
  for_each_target([&] {
    run_kernel(*make_cpu_backend(1), matmul_kernel(), p, {ones.data(), ones.data(), scale_a.data(), scale_b.data(), &c});
    EXPECT_EQ(c, 128 * 6 + 72 * 35);
  });
}

TEST(Matmul, Cost_OfAnAccumulatingProduct_CountsTheOutputOnBothSides) {
  // a 4·2·3, b 4·2·5, c 2·3·5: with fp16 inputs and fp32 c 2·(2·3 + 2·5) + 4·15 = 92 read, 60 written.
  const Cost cost = matmul_kernel().cost(matmul_problem(wgrad, {3, 5, 2}, fp16, fp16, fp32, false, fp32, true));
  EXPECT_EQ(cost.bytes_read, 92);
  EXPECT_EQ(cost.bytes_written, 60);
  EXPECT_EQ(cost.useful_flops[static_cast<std::size_t>(fp16)], 60);  // 2·3·5·2
}

TEST(Matmul, Cost_ThatPasses64Bits_IsRefused) {
  const std::int64_t huge = std::int64_t{1} << 31;
  EXPECT_THROW(matmul_kernel().cost(matmul_problem(dgrad, {huge, huge, huge}, fp32, fp32, fp32)), Error);
}

TEST(Matmul, NUM4_Fp32_KeepsWhatTf32Drops) {
  // 1024 · (1 + 2⁻¹¹) = 1024.5; with tf32's 10 bits it is 1024.
  const std::vector<float> a(1024, 1 + 0x1p-11f), ones(1024, 1.0f);
  EXPECT_EQ(multiply_fp32({1, 1, 1024}, a, ones, 1).at(0), 1024.5f);
}

TEST(Matmul, NUM4_Fp32_RelativeErrorOfARandomProductIsThatOfFp32) {
  const MatmulShape s{512, 512, 512};
  const std::vector<float> a = normals(s.m * s.k, 3), b = normals(s.n * s.k, 4);
  const std::vector<float> c = multiply_fp32(s, a, b, 2);
  double error = 0, norm = 0;
  for (std::int64_t i = 0; i < s.m; ++i)
    for (std::int64_t j = 0; j < s.n; ++j) {
      double sum = 0;
      for (std::int64_t p = 0; p < s.k; ++p)
        sum += double{a[static_cast<std::size_t>(i * s.k + p)]} * b[static_cast<std::size_t>(j * s.k + p)];
      const double off = c[static_cast<std::size_t>(i * s.n + j)] - sum;
      error += off * off;
      norm += sum * sum;
    }
  // Partial sums grow like √p, so the error is about u·√(k/6) = 5.5e-7 for one chain of 512 and less in blocks of 256;
  // tf32 inputs would give 3e-4.
  const double relative = std::sqrt(error / norm);
  EXPECT_LT(relative, 6e-7);
  EXPECT_GT(relative, 5e-8);
}

TEST(Matmul, Fp8Scales_ThatAreNoPowersOfTwo_DivideTheSum) {
  // (1·2 + 3·4) / 149.25 / 0.375 + 0 = 0.250139…; e4m3 codes of 1, 2, 3, 4.
  std::vector<std::uint8_t> a = {encode_fp8_e4m3(1), encode_fp8_e4m3(3)}, b = {encode_fp8_e4m3(2), encode_fp8_e4m3(4)};
  float scale_a = 149.25f, scale_b = 0.375f, c = 0;
  const GemmBlocking blocking = gemm_blocking(1, 1, 2, 1);
  Workspace workspace(blocking);
  GemmTask task{.m = 1,
                .n = 1,
                .k = 2,
                .a = {a.data(), fp8_e4m3, 2, true},
                .b = {b.data(), fp8_e4m3, 2, true},
                .scale_a = &scale_a,
                .scale_b = &scale_b,
                .c = &c};
  gemm(task, blocking, workspace.data());
  EXPECT_FLOAT_EQ(c, static_cast<float>(14.0 / 149.25 / 0.375));
  // Scales whose product overflows fp32 still leave zeros zero.
  a = {0, 0};
  scale_a = scale_b = 3e38f;
  gemm(task, blocking, workspace.data());
  EXPECT_EQ(c, 0.0f);
}

TEST(Matmul, SixteenBitOutputs_AreRoundedOnceFromFp32Sums) {
  // Three blocks of 256 terms sum to 256, 1 and 1: 258 is a bf16 value. Kept in bf16 in between, where the spacing is
  // 2, 256 + 1 would go back to the even 256, twice.
  const std::int64_t k = 768;
  std::vector<float> a(static_cast<std::size_t>(k), 0x1p-8f), b(static_cast<std::size_t>(k), 1.0f);
  std::fill_n(a.begin(), 256, 1.0f);
  std::uint16_t c = 0;
  const GemmBlocking blocking = gemm_blocking(1, 1, k, 1);
  Workspace workspace(blocking);
  gemm({.m = 1,
        .n = 1,
        .k = k,
        .a = {a.data(), fp32, k, true},
        .b = {b.data(), fp32, k, true},
        .c = &c,
        .c_format = bf16},
       blocking, workspace.data());
  EXPECT_EQ(decode_bf16(c), 258.0f);
}

TEST(Matmul, Workspace_IsBoundedByBlocksNotByMatrices) {
  const auto bytes = [](const MatmulShape& s, int threads) {
    return matmul_kernel().workspace_bytes(matmul_problem(forward, s, fp32, fp32, fp32),
                                           {.backend = "cpu", .threads = threads});
  };
  EXPECT_EQ(bytes({0, 768, 768}, 2), 0);
  EXPECT_LT(bytes({1, 1, 1}, 64), 32 * 1024);
  // Per worker: c 504·768, b 768·256, a 168·256, staging 32·256, zeros 256, rows 4·768, in fp32.
  const std::int64_t most = 4 * (504 * 768 + 768 * 256 + 168 * 256 + 32 * 256 + 256 + 4 * 768);
  EXPECT_EQ(bytes({504, 768, 256}, 1), most);
  EXPECT_LE(bytes({1 << 20, 1 << 20, 1 << 14}, 1), most);
  EXPECT_LE(bytes({1 << 20, 50257, 768}, 64), 64 * most);
  EXPECT_EQ(
      matmul_kernel().workspace_bytes(matmul_problem(forward, {504, 768, 256}, fp32, fp32, fp32), {.backend = "cuda"}),
      0);
}

TEST(Matmul, NarrowInputs_AreReportedAsEmulated) {
  const auto backend = make_cpu_backend(1);
  const auto emulated = [&](Format a, Format c) {
    return backend->prepare(matmul_problem(forward, {8, 8, 8}, a, a, c), "mixroof")->emulated();
  };
  EXPECT_FALSE(emulated(fp32, fp32));
  for (const Format format : {fp16, bf16, fp8_e4m3}) EXPECT_TRUE(emulated(format, bf16)) << name(format);
}

TEST(Matmul, Tf32_IsRefusedOnTheCpuWithARemedy) {
  const auto backend = make_cpu_backend(1);
  const Support support = backend->supports(matmul_problem(forward, {8, 8, 8}, tf32, tf32, fp32));
  EXPECT_FALSE(support.yes);
  EXPECT_THAT(support.reason, testing::HasSubstr("--recipes fp32"));
}

TEST(Matmul, ImpossibleCases_NameTheDimension) {
  const Recipe& recipe = find_recipe("fp32");
  const auto message = [&](const Case& c) { return usage_error_of([&] { matmul_kernel().problem(recipe, c); }); };
  EXPECT_THAT(message({"forward", {{"m", 1}, {"n", -2}, {"k", 3}}}), testing::HasSubstr("n=-2"));
  EXPECT_THAT(message({"dgrad", {{"m", 1}, {"n", 2}, {"k", 3}, {"bias", 1}}}), testing::HasSubstr("bias=1"));
  EXPECT_THAT(message({"dgrd", {{"m", 1}, {"n", 2}, {"k", 3}}}), testing::HasSubstr("dgrad"));
}

TEST(MatmulLibrary, OneThatWritesNaN_MayNotCompete) {
  const auto backend = make_cpu_backend(1);
  const MatmulPrepare broken = [](const Problem& problem, const PrepareContext&) -> std::unique_ptr<Plan> {
    const Operand c = matmul_kernel().operands(problem).back();
    return std::make_unique<MutantPlan>(
        [c](const Launch& launch) { std::memset(launch.operands.back(), 0xFF, static_cast<std::size_t>(c.bytes())); });
  };
  const Support support = verify_library("broken", broken, backend->facts(), fp32, fp32);
  EXPECT_FALSE(support.yes);
  EXPECT_THAT(support.reason, testing::AnyOf(testing::HasSubstr("broken is wrong"), testing::HasSubstr("sanitizers")));
}

// ---- Mutants: defects that the check must see. ----

class MatmulMutants : public testing::Test {
 protected:
  void expect_caught(const Problem& problem, const Mutant& mutant, CheckInputs inputs = CheckInputs::random) {
    mixroof::expect_caught(*backend_, matmul_kernel(), problem, mutant, {.seed = 5, .inputs = inputs});
  }
  /// The right plan of a problem, run on some of the launch's operands.
  void run_right(const Problem& problem, std::vector<void*> operands, const Launch& launch) {
    backend_->prepare(problem, "mixroof")->run({.operands = operands, .workspace = launch.workspace});
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

TEST_F(MatmulMutants, LastColumnNotWritten) {
  const Problem p = matmul_problem(forward, {19, 33, 40}, bf16, bf16, bf16);
  expect_caught(p, [&](const Launch& l) {
    auto* c = static_cast<std::uint16_t*>(l.operands[2]);
    std::vector<std::uint16_t> before;
    for (int i = 0; i < 19; ++i) before.push_back(c[i * 33 + 32]);
    run_right(p, {l.operands.begin(), l.operands.end()}, l);
    for (std::size_t i = 0; i < 19; ++i) c[i * 33 + 32] = before[i];
  });
}

TEST_F(MatmulMutants, AccumulateFlagIgnored) {
  const Problem p = matmul_problem(wgrad, {19, 33, 40}, fp32, fp32, fp32, false, fp32, true);
  Problem overwriting = p;
  overwriting.accumulate = false;
  expect_caught(p, [&](const Launch& l) { run_right(overwriting, {l.operands.begin(), l.operands.end()}, l); });
}

TEST_F(MatmulMutants, OneTermDropped) {
  // The longest k of GPT-2's layers; fp32 and bf16 outputs.
  for (const Format c : {fp32, bf16}) {
    const Problem p = matmul_problem(forward, {9, 17, 3072}, fp16, fp16, c);
    const GemmBlocking blocking = gemm_blocking(9, 17, 3071, 1);
    Workspace workspace(blocking);
    expect_caught(p, [&](const Launch& l) {
      gemm({.m = 9,
            .n = 17,
            .k = 3071,
            .a = {l.operands[0], fp16, 3072, true},
            .b = {l.operands[1], fp16, 3072, true},
            .c = l.operands[2],
            .c_format = c},
           blocking, workspace.data());
    });
  }
}

TEST_F(MatmulMutants, BiasDropped) {
  const Problem p = matmul_problem(forward, {19, 33, 40}, bf16, bf16, bf16, true, fp32);
  const Problem plain = matmul_problem(forward, {19, 33, 40}, bf16, bf16, bf16);
  expect_caught(p, [&](const Launch& l) { run_right(plain, {l.operands[0], l.operands[1], l.operands[3]}, l); });
}

TEST_F(MatmulMutants, OneScaleUsedTwice) {
  const Problem p = matmul_problem(dgrad, {19, 33, 40}, fp8_e5m2, fp8_e4m3, bf16);
  expect_caught(p, [&](const Launch& l) {
    run_right(p, {l.operands[0], l.operands[1], l.operands[2], l.operands[2], l.operands[4]}, l);
  });
}

/// An FP8 product with block scales of each variant.
std::vector<Problem> block_scaled_problems(const MatmulScales& scales) {
  return {matmul_problem(forward, {19, 33, 200}, fp8_e4m3, fp8_e4m3, bf16, false, fp32, false, scales),
          matmul_problem(dgrad, {19, 33, 200}, fp8_e5m2, fp8_e4m3, bf16, false, fp32, false, scales),
          matmul_problem(wgrad, {19, 33, 200}, fp8_e5m2, fp8_e4m3, fp32, false, fp32, true, scales)};
}

TEST_F(MatmulMutants, BlockScalesOfTheNextBlock) {
  for (const MatmulScales& scales : {MatmulScales{128, fp32}, MatmulScales{32, Format::e8m0}})
    for (const Problem& p : block_scaled_problems(scales))
      for (const std::size_t operand : {2, 3}) {
        const Operand scale = matmul_kernel().operands(p)[operand];
        expect_caught(p, [&](const Launch& l) {
          std::vector<unsigned char> rotated(static_cast<const unsigned char*>(l.operands[operand]),
                                             static_cast<const unsigned char*>(l.operands[operand]) + scale.bytes());
          std::rotate(rotated.begin(), rotated.begin() + bytes_of(scale.format), rotated.end());
          std::vector<void*> operands(l.operands.begin(), l.operands.end());
          operands[operand] = rotated.data();
          run_right(p, operands, l);
        });
      }
}

TEST_F(MatmulMutants, LastShortBlockTakesTheScaleBeforeIt) {
  const Problem p = block_scaled_problems({128, fp32})[0];  // blocks of 128 and 72
  expect_caught(p, [&](const Launch& l) {
    std::vector<float> scales(static_cast<const float*>(l.operands[2]), static_cast<const float*>(l.operands[2]) + 19 * 2);
    for (std::size_t row = 0; row < 19; ++row) scales[2 * row + 1] = scales[2 * row];
    run_right(p, {l.operands[0], l.operands[1], scales.data(), l.operands[3], l.operands[4]}, l);
  });
}

TEST_F(MatmulMutants, PartialSumsRoundedToBf16) {
  // The two halves of k added through a 16-bit c.
  const Problem p = matmul_problem(wgrad, {19, 33, 512}, bf16, bf16, bf16);
  Problem half = matmul_problem(wgrad, {19, 33, 256}, bf16, bf16, bf16);
  expect_caught(p, [&](const Launch& l) {
    half.accumulate = false;
    run_right(half, {l.operands[0], l.operands[1], l.operands[2]}, l);
    half.accumulate = true;
    run_right(half,
              {static_cast<std::uint16_t*>(l.operands[0]) + 19 * 256,
               static_cast<std::uint16_t*>(l.operands[1]) + 33 * 256, l.operands[2]},
              l);
  });
}

TEST_F(MatmulMutants, WeightsReadTransposed) {
  const Problem p = matmul_problem(forward, {24, 24, 24}, fp32, fp32, fp32),
                wrong = matmul_problem(dgrad, {24, 24, 24}, fp32, fp32, fp32);
  expect_caught(
      p,
      [&](const Launch& l) {
        run_right(wrong, {l.operands.begin(), l.operands.end()}, l);
      },
      CheckInputs::integers);
}

}  // namespace
}  // namespace mixroof
