// Mutants that these tests catch: the last column not written; positions shifted by one; the last row of a repeated
// token lost; a tied gradient overwritten instead of added to; rows of absent tokens left as they were; positions of
// the first sequence only.
#include "kernels/embedding/embedding.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "harness/backend/cpu/parallel.h"
#include "kernels/kernel_test.h"

namespace mixroof {
namespace {

constexpr EmbeddingShape kShape{.batch = 2, .seq = 9, .vocab = 5, .context = 11, .width = 33};

class Embedding : public testing::Test {
 protected:
  CheckResult check_forward(const Defect& defect) {
    return check_mutant(*backend_, embedding_kernel(), embedding_forward_problem(kShape, Format::fp32, Format::fp32),
                        defect);
  }
  CheckResult check_backward(bool tied, const Defect& defect) {
    const Problem problem = embedding_backward_problem(kShape, Format::fp32, Format::fp32, tied, false);
    return check_mutant(*backend_, embedding_kernel(), problem, defect);
  }
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

TEST_F(Embedding, EveryCase_AgreesWithTheReference_OnEveryTargetOfThisProcessor) {
  expect_all_cases_pass(embedding_kernel(), *backend_, 500);
}

TEST_F(Embedding, Backward_GivesTheSameBitsWithAnyNumberOfWorkers) {
  const EmbeddingShape shape{.batch = 4, .seq = 64, .vocab = 9, .context = 64, .width = 700};
  const Problem problem = embedding_backward_problem(shape, Format::bf16, Format::fp32, true, false);
  const auto inputs = make_inputs(embedding_kernel(), problem, 3);
  const auto expected = run_on(*backend_, embedding_kernel(), problem, inputs);
  for (const int workers : {1, 3, 8}) {
    set_worker_count(workers);
    EXPECT_EQ(run_on(*backend_, embedding_kernel(), problem, inputs), expected) << workers << " workers";
  }
  set_worker_count(2);
}

TEST_F(Embedding, RowsOfOneToken_AreSummedInFp32AndRoundedOnce) {
  // bf16 steps by 2 from 256 on: adding 1 three times, rounded each time, stays at 256; summed first it is 259 -> 260
  // (the tie between 258 and 260 goes to the even mantissa).
  const EmbeddingShape shape{.batch = 1, .seq = 3, .vocab = 2, .context = 3, .width = 1};
  const Problem problem = embedding_backward_problem(shape, Format::bf16, Format::bf16, true, false);
  const auto results = run_on(*backend_, embedding_kernel(), problem, {{1, 1, 1}, {1, 1, 1}, {7, 256}, {}});
  EXPECT_EQ(results[2], (std::vector<double>{7, 260}));
  EXPECT_EQ(results[3], (std::vector<double>{1, 1, 1}));
}

TEST_F(Embedding, Backward_WritesOrAddsAsTheFlagsSay) {
  // One sequence of tokens 2, 2; dout 1 and 10; four tokens, three positions.
  const EmbeddingShape shape{.batch = 1, .seq = 2, .vocab = 4, .context = 3, .width = 1};
  const auto run = [&](bool tied, bool accumulate) {
    const Problem p = embedding_backward_problem(shape, Format::fp32, Format::fp32, tied, accumulate);
    return run_on(*backend_, embedding_kernel(), p, {{1, 10}, {2, 2}, {100, 200, 300, 400}, {5, 6, 7}});
  };
  using Values = std::vector<double>;
  EXPECT_EQ(run(false, false)[2], (Values{0, 0, 11, 0}));
  EXPECT_EQ(run(false, false)[3], (Values{1, 10, 0}));
  EXPECT_EQ(run(true, false)[2], (Values{100, 200, 311, 400}));
  EXPECT_EQ(run(true, false)[3], (Values{1, 10, 0}));
  EXPECT_EQ(run(false, true)[2], (Values{100, 200, 311, 400}));
  EXPECT_EQ(run(true, true)[3], (Values{6, 16, 7}));
}

TEST_F(Embedding, ANonFiniteGradient_ReachesTheTable) {
  const EmbeddingShape shape{.batch = 1, .seq = 2, .vocab = 3, .context = 2, .width = 1};
  const Problem problem = embedding_backward_problem(shape, Format::fp16, Format::fp32, false, false);
  const auto results =
      run_on(*backend_, embedding_kernel(), problem, {{std::numeric_limits<double>::infinity(), 1}, {2, 0}, {}, {}});
  EXPECT_TRUE(std::isinf(results[2][2]));
  EXPECT_EQ(results[2][0], 1);
  EXPECT_TRUE(std::isinf(results[3][0]));
}

TEST(EmbeddingCost, Forward_ReadsTheRowsThatAreUsed) {
  // 2·9 = 18 tokens name at most 13 rows of 33; 9 positions. Read: 18·4 + 13·33·2 + 9·33·2; written: 18·33·4.
  const EmbeddingShape shape{.batch = 2, .seq = 9, .vocab = 13, .context = 11, .width = 33};
  const Cost few = embedding_kernel().cost(embedding_forward_problem(shape, Format::bf16, Format::fp32));
  EXPECT_EQ(few.bytes_read, 72 + 858 + 594);
  EXPECT_EQ(few.bytes_written, 2376);
  EXPECT_EQ(few.total_useful_flops(), 594);
  // A large vocabulary is not read as a whole: 18 rows.
  const EmbeddingShape large{.batch = 2, .seq = 9, .vocab = 50257, .context = 11, .width = 33};
  EXPECT_EQ(embedding_kernel().cost(embedding_forward_problem(large, Format::bf16, Format::fp32)).bytes_read,
            72 + 18 * 33 * 2 + 594);
}

TEST(EmbeddingCost, Backward_CountsTouchedRowsWhenAddingAndAllWhenWriting) {
  // dout 18·33·2 = 1188 bytes and 72 bytes of tokens are read. Adding to the table: 18 rows of 33 fp32 = 2376 bytes
  // read and written; writing it: 20 rows = 2640. Positions written: 11 rows = 1452 bytes; added to: 9 rows = 1188.
  const EmbeddingShape shape{.batch = 2, .seq = 9, .vocab = 20, .context = 11, .width = 33};
  const auto cost = [&](bool tied, bool accumulate) {
    return embedding_kernel().cost(embedding_backward_problem(shape, Format::bf16, Format::fp32, tied, accumulate));
  };
  EXPECT_EQ(cost(true, false).bytes_read, 1188 + 72 + 2376);
  EXPECT_EQ(cost(true, false).bytes_written, 2376 + 1452);
  EXPECT_EQ(cost(false, false).bytes_read, 1188 + 72);
  EXPECT_EQ(cost(false, false).bytes_written, 2640 + 1452);
  EXPECT_EQ(cost(true, true).bytes_read, 1188 + 72 + 2376 + 1188);
  EXPECT_EQ(cost(true, true).bytes_written, 2376 + 1188);
  EXPECT_EQ(cost(true, false).total_useful_flops(), 2 * 18 * 33);
}

TEST(EmbeddingWorkspace, HoldsTheListsOfOccurrences) {
  const Problem backward = embedding_backward_problem(kShape, Format::fp32, Format::fp32, true, false);
  EXPECT_EQ(embedding_kernel().workspace_bytes(backward, {.backend = "cpu", .threads = 2}), 4 * (5 + 18));
  EXPECT_EQ(embedding_kernel().workspace_bytes(backward, {.backend = "reference", .threads = 1}), 0);
}

TEST(EmbeddingProblem, ImpossibleOnes_AreRefusedWithTheDimension) {
  const auto message = [](EmbeddingShape shape) {
    return usage_error_of([&] { embedding_forward_problem(shape, Format::fp32, Format::fp32); });
  };
  EXPECT_NE(message({.batch = 1, .seq = 12, .vocab = 5, .context = 11, .width = 3}).find("context=11"),
            std::string::npos);
  EXPECT_NE(message({.batch = 1, .seq = 12, .vocab = 0, .context = 12, .width = 3}).find("vocab=0"), std::string::npos);
  EXPECT_THROW(embedding_kernel().problem(find_recipe("fp32"), {"forward", {{"batch", 2}}}), UsageError);
}

TEST_F(Embedding, Mutant_LastColumnNotWritten_IsCaught) {
  EXPECT_FALSE(check_forward([](const Plan& sound, const Launch& launch) {
                 auto* out = static_cast<float*>(launch.operands[3]);
                 run_without_writing(sound, launch, out + kShape.width - 1, sizeof(float));
               }).pass);
}

TEST_F(Embedding, Mutant_PositionsShiftedByOne_IsCaught) {
  EXPECT_FALSE(check_forward([](const Plan& sound, const Launch& launch) {
                 run_replacing(sound, launch, 2, floats(launch, 2) + kShape.width);
               }).pass);
}

TEST_F(Embedding, Mutant_LastRowOfARepeatedTokenLost_IsCaught) {
  EXPECT_FALSE(check_backward(true, [](const Plan& sound, const Launch& launch) {
                 // The last token's row of dout is taken out of the table's gradient again.
                 const auto* tokens = static_cast<const std::int32_t*>(launch.operands[1]);
                 ASSERT_NE(std::find(tokens, tokens + 17, tokens[17]), tokens + 17) << "not repeated";
                 sound.run(launch);
                 const auto* last = static_cast<const float*>(launch.operands[0]) + 17 * kShape.width;
                 auto* row = static_cast<float*>(launch.operands[2]) + tokens[17] * kShape.width;
                 for (int c = 0; c < kShape.width; ++c) row[c] -= last[c];
               }).pass);
}

TEST_F(Embedding, Mutant_TiedGradientOverwritten_IsCaught) {
  EXPECT_FALSE(check_backward(true, [](const Plan& sound, const Launch& launch) {
                 std::memset(launch.operands[2], 0, kShape.vocab * kShape.width * sizeof(float));
                 sound.run(launch);
               }).pass);
}

TEST_F(Embedding, Mutant_AbsentRowsNotZeroed_IsCaught) {
  const EmbeddingShape shape{.batch = 1, .seq = 4, .vocab = 40, .context = 4, .width = 8};
  const Problem problem = embedding_backward_problem(shape, Format::fp32, Format::fp32, false, false);
  const CheckResult result =
      check_mutant(*backend_, embedding_kernel(), problem, [](const Plan& sound, const Launch& launch) {
        auto* table = static_cast<float*>(launch.operands[2]);
        const auto* tokens = static_cast<const std::int32_t*>(launch.operands[1]);
        std::int32_t absent = 0;
        while (std::find(tokens, tokens + 4, absent) != tokens + 4) ++absent;
        run_without_writing(sound, launch, table + absent * 8, 8 * sizeof(float));
      });
  EXPECT_FALSE(result.pass);
}

TEST_F(Embedding, Mutant_PositionsOfTheFirstSequenceOnly_IsCaught) {
  EXPECT_FALSE(check_backward(true, [](const Plan& sound, const Launch& launch) {
                 sound.run(launch);
                 std::memcpy(launch.operands[3], launch.operands[0], kShape.seq * kShape.width * sizeof(float));
               }).pass);
}

}  // namespace
}  // namespace mixroof
