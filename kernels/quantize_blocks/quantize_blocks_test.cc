// Mutants that these tests catch: the last, shorter block without a scale of its own; a scale per row where one per
// column is wanted; the scale of the block before; the scale stored instead of its inverse; counts overwritten.
#include "kernels/quantize_blocks/quantize_blocks.h"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/kernel_test.h"

namespace mixroof {
namespace {

constexpr Format kE4m3 = Format::fp8_e4m3;

class QuantizeBlocks : public testing::Test {
 protected:
  struct Quantized {
    std::vector<double> codes, scale_inv, counts, scale_counts;
    double found_inf;
  };
  Quantized quantize(const std::vector<double>& x, const BlockShape& shape, Format scale = Format::fp32,
                     Format codes = kE4m3) {
    const auto after =
        run_on(*backend_, quantize_blocks_kernel(), quantize_blocks_problem(shape, Format::fp32, codes, scale),
               {x, {}, {}, {0, 0}, {0, 0}, control_with({})});
    return {after[1], after[2], after[3], after[4], slot(after[5].data(), Slot::found_inf)};
  }
  template <typename Damage>
  bool passes(const BlockShape& shape, const Damage& damage) {
    const Problem problem = quantize_blocks_problem(shape, Format::fp32, kE4m3, Format::fp32);
    return check_mutant(*backend_, quantize_blocks_kernel(), problem, Defect(damage)).pass;
  }
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
  const BlockShape along_rows_{.rows = 5, .width = 300, .block = 128, .along_rows = true};
  const BlockShape along_columns_{.rows = 300, .width = 5, .block = 128, .along_rows = false};
};

TEST_F(QuantizeBlocks, EveryCase_EqualsTheReference_OnEveryTarget) {
  expect_all_cases_pass(quantize_blocks_kernel(), *backend_);
}

TEST_F(QuantizeBlocks, ByHand_EachBlockTakesItsOwnLargestValue) {
  // Blocks of two along the rows: amax 448, 4 and, alone in its block, 7.
  const Quantized rows = quantize({-448, 1, 2, 4, 7}, {.rows = 1, .width = 5, .block = 2, .along_rows = true});
  EXPECT_EQ(rows.codes, (std::vector<double>{-448, 1, 224, 448, 448}));
  EXPECT_EQ(rows.scale_inv, (std::vector<double>{1, 1 / 112.0f, 1 / 64.0f}));
  // Along the columns of [4, 2] with blocks of three: column 0 has 1, 2, 4 | 8, column 1 zeros | 448.
  const Quantized columns =
      quantize({1, 0, 2, 0, 4, 0, 8, 448}, {.rows = 4, .width = 2, .block = 3, .along_rows = false});
  EXPECT_EQ(columns.codes, (std::vector<double>{112, 0, 224, 0, 448, 0, 448, 448}));
  EXPECT_EQ(columns.scale_inv, (std::vector<double>{1 / 112.0f, 1, 1 / 56.0f, 1}));
  EXPECT_EQ(columns.scale_counts, (std::vector<double>{1, 0})) << "the block of zeros kept scale 1";
}

TEST_F(QuantizeBlocks, Microscaling_StoresPowersOfTwo) {
  const Quantized mx = quantize({449, -3, 0, 0}, {.rows = 1, .width = 4, .block = 2, .along_rows = true}, Format::e8m0);
  EXPECT_EQ(mx.scale_inv, (std::vector<double>{2, 0x1p-127}));
  EXPECT_EQ(mx.codes, (std::vector<double>{224, -1.5, 0, 0}));
  EXPECT_EQ(mx.counts, (std::vector<double>{0, 0}));
}

TEST_F(QuantizeBlocks, FP8_1_TinyAndNonFiniteBlocks_AreCountedAndRaiseFoundInf) {
  const double inf = std::numeric_limits<double>::infinity();
  const Quantized q = quantize({1e-40, 0, 3, inf, 1, 2}, {.rows = 3, .width = 2, .block = 2, .along_rows = true});
  EXPECT_EQ(q.scale_inv[0], 1 / std::numeric_limits<float>::max());
  EXPECT_EQ(q.scale_inv[1], 1);
  EXPECT_EQ(q.scale_counts, (std::vector<double>{1, 1}));
  EXPECT_EQ(q.codes[3], 448);
  EXPECT_EQ(q.counts[0], 1);
  EXPECT_EQ(q.found_inf, 1);
  EXPECT_EQ(quantize({1, 2}, {.rows = 1, .width = 2, .block = 2, .along_rows = true}).found_inf, 0);
}

// fp32(amax · fp32(448 / amax)) may come out a rounding above 448, which is no saturation.
TEST_F(QuantizeBlocks, TheLargestValueOfABlock_IsNeverCountedAsSaturated) {
  std::vector<double> x;
  for (int i = 0; i < 4000; ++i) x.push_back(static_cast<float>(1 + i * 0.00037));
  EXPECT_EQ(quantize(x, {.rows = 4000, .width = 1, .block = 1, .along_rows = true}).counts[0], 0);
  EXPECT_EQ(quantize(x, {.rows = 1, .width = 4000, .block = 1, .along_rows = false}).counts[0], 0);
}

// Rows of a matrix and columns of its transpose are the same blocks.
TEST_F(QuantizeBlocks, ColumnsOfTheTranspose_GiveTheSameCodesAndScales) {
  for (const std::int64_t block : {300, 128, 32}) {
    const BlockShape rows{.rows = 40, .width = 300, .block = block, .along_rows = true};
    const BlockShape columns{.rows = 300, .width = 40, .block = block, .along_rows = false};
    const std::vector<double> x =
        make_inputs(quantize_blocks_kernel(), quantize_blocks_problem(rows, Format::fp32, kE4m3, Format::fp32), 1)[0];
    const auto transposed = [](const std::vector<double>& a, std::size_t width) {
      std::vector<double> t(a.size());
      const std::size_t height = a.size() / width;
      for (std::size_t i = 0; i < a.size(); ++i) t[i % width * height + i / width] = a[i];
      return t;
    };
    const Quantized there = quantize(x, rows), back = quantize(transposed(x, 300), columns);
    EXPECT_TRUE(same_bytes(transposed(there.codes, 300), back.codes)) << block;
    EXPECT_TRUE(same_bytes(transposed(there.scale_inv, there.scale_inv.size() / 40), back.scale_inv)) << block;
    EXPECT_EQ(there.counts, back.counts);
    EXPECT_EQ(there.scale_counts, back.scale_counts);
  }
}

TEST(QuantizeBlocksCost, CountsEachByteOnce) {
  const Problem problem =
      quantize_blocks_problem({.rows = 10, .width = 300, .block = 128}, Format::bf16, kE4m3, Format::fp32);
  const Cost cost = quantize_blocks_kernel().cost(problem);
  EXPECT_EQ(cost.total_useful_flops(), 3000);
  EXPECT_EQ(cost.bytes_read, 6000 + 2 * 16 + 32 * 8);
  EXPECT_EQ(cost.bytes_written, 3000 + 10 * 3 * 4 + 2 * 16 + 32 * 8);
  const Problem mx =
      quantize_blocks_problem({.rows = 10, .width = 300, .block = 32}, Format::bf16, kE4m3, Format::e8m0);
  EXPECT_EQ(quantize_blocks_kernel().cost(mx).bytes_written, 3000 + 10 * 10 + 2 * 16 + 32 * 8);
}

TEST_F(QuantizeBlocks, TheMutantsHarness_PassesWithoutADefect) {
  for (const BlockShape& shape : {along_rows_, along_columns_})
    EXPECT_TRUE(passes(shape, [](const Plan& sound, const Launch& l) { sound.run(l); }));
}

TEST_F(QuantizeBlocks, Mutant_LastBlockTakesTheScaleBeforeIt_IsCaught) {
  EXPECT_FALSE(passes(along_rows_, [](const Plan& sound, const Launch& l) {
    sound.run(l);
    for (int row = 0; row < 5; ++row) floats(l, 2)[row * 3 + 2] = floats(l, 2)[row * 3 + 1];
  }));
}

TEST_F(QuantizeBlocks, Mutant_ScalesOfTheOtherDimension_AreCaught) {
  const auto other = backend_->prepare(quantize_blocks_problem({.rows = 5, .width = 5, .block = 5, .along_rows = true},
                                                               Format::fp32, kE4m3, Format::fp32));
  const BlockShape shape{.rows = 5, .width = 5, .block = 5, .along_rows = false};
  EXPECT_FALSE(passes(shape, [&](const Plan&, const Launch& l) { other->run(l); }));
}

TEST_F(QuantizeBlocks, Mutant_TheScaleItselfStored_IsCaught) {
  EXPECT_FALSE(passes(along_columns_, [](const Plan& sound, const Launch& l) {
    sound.run(l);
    for (int i = 0; i < 15; ++i) floats(l, 2)[i] = 1 / floats(l, 2)[i];
  }));
}

TEST_F(QuantizeBlocks, Mutant_CountsOverwritten_IsCaught) {
  EXPECT_FALSE(passes(along_rows_, [](const Plan& sound, const Launch& l) {
    for (const std::size_t operand : {3, 4}) std::fill_n(static_cast<double*>(l.operands[operand]), 2, 0.0);
    sound.run(l);
  }));
}

TEST(QuantizeBlocksProblem, ImpossibleOnes_AreRefused) {
  const auto message = [](const BlockShape& shape, Format codes, Format scale) {
    return usage_error_of([&] { quantize_blocks_problem(shape, Format::bf16, codes, scale); });
  };
  EXPECT_THAT(message({.rows = -1, .width = 1, .block = 1}, kE4m3, Format::fp32), testing::HasSubstr("rows=-1"));
  EXPECT_THAT(message({.rows = 1, .width = 1, .block = 0}, kE4m3, Format::fp32), testing::HasSubstr("block=0"));
  EXPECT_THAT(message({.rows = 1, .width = 1, .block = 1}, Format::bf16, Format::fp32),
              testing::HasSubstr("codes cannot be bf16"));
  EXPECT_THAT(message({.rows = 1, .width = 1, .block = 1}, kE4m3, Format::bf16),
              testing::HasSubstr("scales cannot be bf16"));
}

}  // namespace
}  // namespace mixroof
