#include "kernels/attention/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "harness/backend/cpu/parallel.h"
#include "kernels/attention/attention_shape.h"
#include "kernels/kernel_test.h"

namespace mixroof {
namespace {

constexpr Format kF = Format::fp32;

/// Defects of a plain forward pass; none gives the right result.
struct Defects {
  std::int64_t mask_shift = 0;  // keys up to i + mask_shift
  bool has_scale = true;
  bool interleaves_groups = false;  // head j reads key head j % kv_heads
};

void plain_forward(const Problem& problem, const Launch& launch, const Defects& defects) {
  const AttentionLayout s(problem);
  const float* qkv = floats(launch, 0);
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t i = 0; i < s.seq; ++i) {
        const std::int64_t kv_head = defects.interleaves_groups ? h % s.kv_heads : h / s.group();
        std::vector<double> out(static_cast<std::size_t>(s.head_dim), 0.0);
        double sum = 0;
        for (std::int64_t j = 0; j <= std::min(i + defects.mask_shift, s.seq - 1); ++j) {
          double score = 0;
          for (std::int64_t d = 0; d < s.head_dim; ++d)
            score += qkv[s.query(b, h) + i * s.qkv_stride() + d] *
                     static_cast<double>(qkv[s.key(b, kv_head) + j * s.qkv_stride() + d]);
          const double p = std::exp(defects.has_scale ? score / std::sqrt(static_cast<double>(s.head_dim)) : score);
          sum += p;
          for (std::int64_t d = 0; d < s.head_dim; ++d)
            out[static_cast<std::size_t>(d)] += p * qkv[s.value(b, kv_head) + j * s.qkv_stride() + d];
        }
        for (std::int64_t d = 0; d < s.head_dim; ++d)
          floats(launch, 1)[s.out(b, h) + i * s.out_stride() + d] =
              static_cast<float>(out[static_cast<std::size_t>(d)] / sum);
        floats(launch, 2)[s.lse(b, h) + i] = static_cast<float>(std::log(sum));
      }
}

class AttentionTest : public ::testing::Test {
 protected:
  bool passes_forward(const AttentionShape& shape, const Defects& defects) {
    const Problem problem = attention_forward_problem(shape, kF);
    return passes(problem, [&](const Launch& l) { plain_forward(problem, l, defects); });
  }
  /// Runs the kernel's own backward and then `damage`.
  bool passes_backward(const AttentionShape& shape,
                       const std::function<void(const AttentionLayout&, float* dqkv)>& damage) {
    const Problem problem = attention_backward_problem(shape, kF);
    return passes(problem, [&](const Plan& sound, const Launch& l) {
      sound.run(l);
      damage(AttentionLayout(problem), floats(l, 4));
    });
  }
  /// Runs the kernel's own backward on an input that was replaced.
  bool passes_with(const AttentionShape& shape, std::size_t operand,
                   const std::function<void(std::vector<float>&)>& change) {
    const Problem problem = attention_backward_problem(shape, kF);
    const std::int64_t count = attention_kernel().operands(problem)[operand].count();
    return passes(problem, [&](const Plan& sound, const Launch& l) {
      std::vector<float> changed(floats(l, operand), floats(l, operand) + count);
      change(changed);
      run_replacing(sound, l, operand, changed.data());
    });
  }
  bool passes(const Problem& problem, const Mutant& mutant) {
    return check_mutant(*backend_, attention_kernel(), problem, mutant).pass;
  }
  bool passes(const Problem& problem, const Defect& defect) {
    return check_mutant(*backend_, attention_kernel(), problem, defect).pass;
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
  const AttentionShape grouped_{.batch = 2, .seq = 70, .heads = 4, .kv_heads = 2, .head_dim = 16};
};

TEST_F(AttentionTest, EveryCaseInEveryRecipeIsWithinItsLimit) { expect_all_cases_pass(attention_kernel(), *backend_); }

TEST_F(AttentionTest, CostIsCountedByHand) {
  // 2 · 3 heads, 4 · 5 / 2 = 10 pairs each, 2 products of 2 · 8 FLOPs a pair: 1920; backward 5 products: 4800.
  const AttentionShape shape{.batch = 2, .seq = 4, .heads = 3, .kv_heads = 1, .head_dim = 8};
  const Cost forward = attention_kernel().cost(attention_forward_problem(shape, Format::bf16));
  EXPECT_EQ(forward.useful_flops[static_cast<std::size_t>(Format::bf16)], 1920);
  EXPECT_EQ(forward.total_useful_flops(), 1920);
  EXPECT_EQ(forward.bytes_read, 8 * 40 * 2);                     // 8 rows of (3 + 2 · 1) · 8 columns
  EXPECT_EQ(forward.bytes_written, 8 * 24 * 2 + 2 * 3 * 4 * 4);  // out, lse
  const Cost backward = attention_kernel().cost(attention_backward_problem(shape, Format::bf16));
  EXPECT_EQ(backward.total_useful_flops(), 4800);
  EXPECT_EQ(backward.bytes_read, 8 * 40 * 2 + 2 * 8 * 24 * 2 + 96);
  EXPECT_EQ(backward.bytes_written, 8 * 40 * 2);
  // A trillion FLOPs do not wrap: 2 · 12 · T(T+1) · 128 · 2 with T = 2^20.
  const AttentionShape big{.batch = 1, .seq = 1 << 20, .heads = 12, .kv_heads = 12, .head_dim = 128};
  EXPECT_EQ(attention_kernel().cost(attention_forward_problem(big, kF)).total_useful_flops(),
            std::int64_t{12} * (1 << 20) * ((1 << 20) + 1) * 128 * 2);
}

TEST_F(AttentionTest, WorkspaceIsLinearInTheSequenceAndInTheWorkers) {
  const auto bytes = [](std::int64_t seq, int threads, bool backward) {
    const AttentionShape shape{.batch = 1, .seq = seq, .heads = 2, .kv_heads = 1, .head_dim = 64};
    const Problem p = backward ? attention_backward_problem(shape, kF) : attention_forward_problem(shape, kF);
    return attention_kernel().workspace_bytes(p, {.threads = threads});
  };
  for (const bool backward : {false, true}) {
    const std::int64_t step = bytes(2048, 1, backward) - bytes(1024, 1, backward);
    EXPECT_EQ(bytes(8192, 1, backward) - bytes(7168, 1, backward), step);
    EXPECT_LE(step, 1024 * (8 * 64 + 1) * 4);  // eight panels of a head and a number per query
    EXPECT_EQ(bytes(1024, 7, backward), 7 * bytes(1024, 1, backward));
  }
}

TEST_F(AttentionTest, ReferenceOfTwoTokensIsRightByHand) {
  // One head of one column. Query 2 against keys 0 and ln 3: P = 1/4, 3/4 for the second token.
  std::vector<double> qkv = {5, 0, 8, /**/ 1, std::log(3.0), 16}, out(2), lse(2);
  const AttentionShape shape{.batch = 1, .seq = 2, .heads = 1, .kv_heads = 1, .head_dim = 1};
  run_reference(attention_kernel(), attention_forward_problem(shape, kF), {&qkv, &out, &lse});
  EXPECT_DOUBLE_EQ(out[0], 8);
  EXPECT_DOUBLE_EQ(out[1], 14);
  EXPECT_DOUBLE_EQ(lse[0], 0);
  EXPECT_DOUBLE_EQ(lse[1], std::log(4.0));
  // dout 0, 1: dv = P; dP = 8, 16, delta 14, dS = ∓1.5; dq = 1.5 ln 3 for the second token, dk = dS · q with q = 1.
  std::vector<double> dout = {0, 1}, dqkv(6);
  run_reference(attention_kernel(), attention_backward_problem(shape, kF), {&qkv, &out, &dout, &lse, &dqkv});
  const double expected[] = {0, -1.5, 0.25, 1.5 * std::log(3.0), 1.5, 0.75};
  for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(dqkv[i], expected[i], 1e-14) << i;
}

TEST_F(AttentionTest, ResultsDoNotDependOnTheNumberOfWorkers) {
  const Problem problems[] = {attention_forward_problem(grouped_, Format::bf16),
                              attention_backward_problem(grouped_, Format::bf16)};
  for (const Problem& problem : problems) {
    const auto inputs = make_inputs(attention_kernel(), problem, 1);
    const std::size_t output = problem.variant == "forward" ? 1 : 4;
    std::vector<std::vector<double>> results;
    for (const int threads : {1, 2, 3})
      results.push_back(run_on(*make_cpu_backend(threads), attention_kernel(), problem, inputs)[output]);
    EXPECT_TRUE(same_bytes(results[0], results[1])) << problem.id();
    EXPECT_TRUE(same_bytes(results[0], results[2])) << problem.id();
  }
  set_worker_count(2);
}

TEST_F(AttentionTest, OnlySixteenBitFormatsWithoutInstructionsAreEmulated) {
  DeviceFacts facts = backend_->facts();
  facts.paths = {"avx2", "scalar"};
  const PrepareContext context{.facts = facts, .queue = nullptr};
  EXPECT_TRUE(attention_cpu()[0].prepare(attention_forward_problem(grouped_, Format::bf16), context)->emulated());
  EXPECT_FALSE(attention_cpu()[0].prepare(attention_forward_problem(grouped_, kF), context)->emulated());
}

TEST_F(AttentionTest, NaNInAKeySpoilsTheQueriesThatSeeItAndNoOther) {
  const AttentionShape shape{.batch = 1, .seq = 20, .heads = 1, .kv_heads = 1, .head_dim = 8};
  for_each_target([&] {
    std::vector<float> qkv(20 * 24, 0.5f), out(20 * 8), lse(20);
    qkv[10 * 24 + 8] = NAN;  // key 10
    run_kernel(*backend_, attention_kernel(), attention_forward_problem(shape, kF),
               {qkv.data(), out.data(), lse.data()});
    for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(std::isnan(out[i * 8]), i >= 10) << i;
  });
}

TEST_F(AttentionTest, ScoresFarApartNeitherOverflowNorVanish) {
  // Scores of ±3200: only the largest key counts. The second token's key is larger, the third's is not.
  const AttentionShape shape{.batch = 1, .seq = 3, .heads = 1, .kv_heads = 1, .head_dim = 1};
  std::vector<float> qkv = {80, -40, 1, /**/ 80, 40, 2, /**/ 80, 0, 3}, out(3), lse(3);
  run_kernel(*backend_, attention_kernel(), attention_forward_problem(shape, kF), {qkv.data(), out.data(), lse.data()});
  EXPECT_THAT(out, ::testing::ElementsAre(1, 2, 2));
  EXPECT_THAT(lse, ::testing::ElementsAre(-3200, 3200, 3200));
}

TEST_F(AttentionTest, Mutants_OfThePlainForward_AreCaughtAndThePlainOnePasses) {
  EXPECT_TRUE(passes_forward(grouped_, {}));
  EXPECT_FALSE(passes_forward(grouped_, {.mask_shift = 1}));
  EXPECT_FALSE(passes_forward(grouped_, {.mask_shift = -1}));
  EXPECT_FALSE(passes_forward(grouped_, {.has_scale = false}));
  EXPECT_FALSE(passes_forward(grouped_, {.interleaves_groups = true}));
}

TEST_F(AttentionTest, Mutant_LastQueryRowNotWritten_IsCaught) {
  const AttentionShape shape{.batch = 1, .seq = 65, .heads = 1, .kv_heads = 1, .head_dim = 5};
  EXPECT_FALSE(passes(attention_forward_problem(shape, kF), [](const Plan& sound, const Launch& l) {
    sound.run(l);
    std::fill_n(floats(l, 1) + 64 * 5, 5, 0.0f);
  }));
}

TEST_F(AttentionTest, Mutants_OfBackward_AreCaughtAndTheUndamagedOnePasses) {
  EXPECT_TRUE(passes_backward(grouped_, [](const AttentionLayout&, float*) {}));
  // dq without the scale.
  EXPECT_FALSE(passes_backward(grouped_, [](const AttentionLayout& s, float* dqkv) {
    for (std::int64_t t = 0; t < s.seq; ++t) dqkv[s.query(0, 0) + t * s.qkv_stride()] *= 4;
  }));
  // The last column of dv is not written.
  EXPECT_FALSE(passes_backward(grouped_, [](const AttentionLayout& s, float* dqkv) {
    for (std::int64_t t = 0; t < s.seq; ++t) dqkv[s.value(0, 1) + t * s.qkv_stride() + 15] = 0;
  }));
  // dk of half a group of query heads (that of seq = 70 queries halved stands for it).
  EXPECT_FALSE(passes_backward(grouped_, [](const AttentionLayout& s, float* dqkv) {
    for (std::int64_t t = 0; t < s.seq; ++t) dqkv[s.key(1, 0) + t * s.qkv_stride()] /= 2;
  }));
}

TEST_F(AttentionTest, Mutants_OfBackwardInputs_AreCaught) {
  EXPECT_TRUE(passes_with(grouped_, 1, [](std::vector<float>&) {}));
  EXPECT_FALSE(
      passes_with(grouped_, 1, [](std::vector<float>& out) { std::fill(out.begin(), out.end(), 0.0f); }));  // no delta
  EXPECT_FALSE(passes_with(grouped_, 3, [](std::vector<float>& lse) {  // lse of the next query
    std::rotate(lse.begin(), lse.begin() + 1, lse.end());
  }));
}

TEST_F(AttentionTest, ImpossibleProblemsNameTheDimension) {
  const auto message = [](const AttentionShape& shape) {
    return usage_error_of([&] { attention_forward_problem(shape, kF); });
  };
  EXPECT_THAT(message({1, 8, 6, 4, 16}), ::testing::HasSubstr("heads=6 is not a multiple of kv_heads=4"));
  EXPECT_THAT(message({1, 8, 6, 0, 16}), ::testing::HasSubstr("kv_heads=0"));
  EXPECT_THAT(message({1, 8, 6, 3, 0}), ::testing::HasSubstr("head_dim=0"));
  EXPECT_THAT(message({1, -8, 6, 3, 4}), ::testing::HasSubstr("seq=-8"));
}

}  // namespace
}  // namespace mixroof
