// Mutants that these tests catch: the last values of a slice left out; triad with a factor of 2; a sum without the last
// worker's share.
#include "kernels/stream/stream.h"

#include "kernels/kernel_test.h"
#include "kernels/stream/stream_cpu.h"

namespace mixroof {
namespace {

class Stream : public testing::Test {
 protected:
  bool passes(const Problem& problem, const Mutant& mutant) {
    return check_mutant(*backend_, stream_kernel(), problem, mutant).pass;
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

TEST_F(Stream, EveryCase_AgreesWithTheReference_OnEveryTargetOfThisProcessor) {
  expect_all_cases_pass(stream_kernel(), *backend_, 201);
}

TEST_F(Stream, OtherRecipes_HaveNoProblem) {
  EXPECT_FALSE(stream_kernel().problem(find_recipe("bf16-master"), stream_kernel().cases().front()).has_value());
}

TEST(StreamCost, CountsEachArrayOnce) {
  // 1000 values of 4 bytes: triad reads two arrays and writes one; 2 FLOPs per value.
  const Cost triad = stream_kernel().cost(stream_problem("triad", 1000, false));
  EXPECT_EQ(triad.bytes_read, 8000);
  EXPECT_EQ(triad.bytes_written, 4000);
  EXPECT_EQ(triad.total_useful_flops(), 2000);
  const Cost read = stream_kernel().cost(stream_problem("read", 1000, false));
  EXPECT_EQ(read.bytes_read, 4000);
  EXPECT_EQ(read.bytes_written, 4);
  const Cost write = stream_kernel().cost(stream_problem("write", 1000, true));
  EXPECT_EQ(write.bytes_read, 0);
  EXPECT_EQ(write.bytes_written, 4000);
  EXPECT_EQ(write.total_useful_flops(), 0);
}

TEST(StreamProblem, ImpossibleOnes_AreRefusedWithTheDimension) {
  EXPECT_THROW(stream_problem("read", 8, true), UsageError);
  EXPECT_THROW(stream_problem("copy", -1, false), UsageError);
  EXPECT_THROW(stream_problem("tirad", 8, false), UsageError);
}

TEST_F(Stream, Mutant_TailLeftOut_IsCaught) {
  EXPECT_FALSE(passes(stream_problem("copy", 1001, false), [](const Launch& launch) {
    stream_slice(StreamOp::copy, false, static_cast<const float*>(launch.operands[0]), nullptr,
                 static_cast<float*>(launch.operands[1]), 1000);
  }));
}

TEST_F(Stream, Mutant_WrongFactor_IsCaught) {
  EXPECT_FALSE(passes(stream_problem("triad", 64, false), [](const Launch& launch) {
    const auto* a = static_cast<const float*>(launch.operands[0]);
    const auto* b = static_cast<const float*>(launch.operands[1]);
    for (int i = 0; i < 64; ++i) static_cast<float*>(launch.operands[2])[i] = a[i] + 2 * b[i];
  }));
}

TEST_F(Stream, Mutant_SumWithoutTheLastWorker_IsCaught) {
  EXPECT_FALSE(passes(stream_problem("read", 20000, false), [](const Launch& launch) {
    *static_cast<float*>(launch.operands[1]) =
        stream_slice(StreamOp::read, false, static_cast<const float*>(launch.operands[0]), nullptr, nullptr, 10000);
  }));
}

}  // namespace
}  // namespace mixroof
