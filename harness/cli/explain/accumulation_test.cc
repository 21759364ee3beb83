#include "harness/cli/explain/accumulation.h"

#include <gtest/gtest.h>

namespace mixroof::cli {
namespace {

TEST(ExplainAccumulation, AThousandTermsOf1e4_AreLostIn16BitsAndKeptInFp32) {
  Workbench bench;
  const Values terms(1000, 1e-4);
  EXPECT_EQ(bench.accumulate(terms, Format::fp16, 1), 1.0);
  EXPECT_EQ(bench.accumulate(terms, Format::bf16, 1), 1.0);
  EXPECT_NEAR(bench.accumulate(terms, Format::fp32, 1), 1.1, 1000 * 0x1p-24);  // at most half a spacing an addition
  EXPECT_NEAR(bench.accumulate(terms, Format::fp32, 0), 0.1, 1000 * 0x1p-28);
  // BF16 stops at 2^-5, above which its spacing is 2^-12 and half of it more than 1e-4.
  EXPECT_EQ(bench.accumulate(terms, Format::bf16, 0), 0x1p-5);
  EXPECT_GT(bench.accumulate(terms, Format::fp16, 0), 0.105);
}

TEST(ExplainAccumulation, ADotProduct_IsExactInFp32AndStopsAt2048InFp16) {
  Workbench bench;
  EXPECT_EQ(dot_of_ones(bench, 4096).matmul, 4096);
  EXPECT_EQ(dot_of_ones(bench, 4096).in_fp16, 2048);
  EXPECT_EQ(dot_of_ones(bench, 1024).in_fp16, 1024);
}

TEST(ExplainAccumulation, AWindowAddedInBf16_IsLessExactTheLongerItIs) {
  Workbench bench;
  const WindowError few = window_error(bench, 2), many = window_error(bench, 32);
  EXPECT_GT(many.in_bf16, 1.5 * many.in_fp32);
  EXPECT_LT(many.in_fp32, 1.5 * few.in_fp32);
  EXPECT_GT(few.in_fp32, 1e-4);  // the micro-batches themselves are in BF16
}

}  // namespace
}  // namespace mixroof::cli
