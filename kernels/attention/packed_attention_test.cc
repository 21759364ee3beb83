// Attention of packed documents. Mutants that these tests catch: documents ignored; first_key taken as relative to the
// document; a document's first token without itself; backward across a border.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_shape.h"
#include "kernels/kernel_test.h"

namespace mixroof {
namespace {

constexpr Format kF = Format::fp32;

/// Lengths of the documents of one row, and its first_key.
std::vector<double> first_keys(const std::vector<int>& lengths) {
  std::vector<double> keys;
  for (const int length : lengths)
    keys.insert(keys.end(), static_cast<std::size_t>(length), static_cast<double>(keys.size()));
  return keys;
}

class PackedAttention : public testing::Test {
 protected:
  static AttentionShape shape(std::int64_t seq, bool packed) {
    return {.batch = 1, .seq = seq, .heads = 4, .kv_heads = 2, .head_dim = 24, .packed = packed};
  }
  template <typename Damage>
  bool passes(const Problem& problem, const Damage& damage) {
    return check_mutant(*backend_, attention_kernel(), problem, damage).pass;
  }
  /// Runs the kernel's own plan on other documents.
  bool passes_with_keys(const Problem& problem, const std::function<void(std::vector<std::int32_t>&)>& change) {
    const std::int64_t count = attention_kernel().operands(problem)[1].count();
    return passes(problem, [&](const Plan& sound, const Launch& l) {
      const auto* keys = static_cast<const std::int32_t*>(l.operands[1]);
      std::vector<std::int32_t> changed(keys, keys + count);
      change(changed);
      run_replacing(sound, l, 1, changed.data());
    });
  }
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

// A packed row gives what its documents give in rows of their own: out, lse and the gradient of the projections.
TEST_F(PackedAttention, EqualsItsDocumentsInRowsOfTheirOwn) {
  const std::vector<int> lengths = {1, 70, 5, 64, 33};
  const auto seq = static_cast<std::int64_t>(first_keys(lengths).size());
  const Problem forward = attention_forward_problem(shape(seq, true), kF);
  const Problem backward = attention_backward_problem(shape(seq, true), kF);
  const AttentionLayout layout(forward);
  auto inputs = make_inputs(attention_kernel(), backward, 5);
  inputs[1] = first_keys(lengths);
  const auto packed = run_on(*backend_, attention_kernel(), forward, {inputs[0], inputs[1], {}, {}});
  const auto packed_back =
      run_on(*backend_, attention_kernel(), backward, {inputs[0], inputs[1], packed[2], inputs[3], packed[3], {}});

  std::int64_t at = 0;
  for (const int length : lengths) {
    const auto rows = [&](const std::vector<double>& values, std::int64_t stride) {
      return std::vector<double>(values.begin() + at * stride, values.begin() + (at + length) * stride);
    };
    const std::int64_t qkv = layout.qkv_stride(), out = layout.out_stride();
    const auto alone = run_on(*backend_, attention_kernel(), attention_forward_problem(shape(length, false), kF),
                              {rows(inputs[0], qkv), {}, {}});
    expect_near(rows(packed[2], out), alone[1], {.relative = 1e-5, .absolute = 1e-6},
                fmt::format("out of {} tokens", length));
    for (std::int64_t head = 0; head < 4; ++head)
      for (std::int64_t i = 0; i < length; ++i)
        EXPECT_NEAR(packed[3][static_cast<std::size_t>(head * seq + at + i)],
                    alone[2][static_cast<std::size_t>(head * length + i)], 1e-5);
    const auto back = run_on(*backend_, attention_kernel(), attention_backward_problem(shape(length, false), kF),
                             {rows(inputs[0], qkv), alone[1], rows(inputs[3], out), alone[2], {}});
    expect_near(rows(packed_back[5], qkv), back[4], {.relative = 1e-4, .absolute = 1e-5},
                fmt::format("dqkv of {} tokens", length));
    at += length;
  }
}

TEST_F(PackedAttention, OneDocumentARow_GivesTheBitsOfPlainAttention) {
  const auto inputs = make_inputs(attention_kernel(), attention_forward_problem(shape(100, false), kF), 2);
  const auto plain = run_on(*backend_, attention_kernel(), attention_forward_problem(shape(100, false), kF), inputs);
  const auto packed = run_on(*backend_, attention_kernel(), attention_forward_problem(shape(100, true), kF),
                             {inputs[0], std::vector<double>(100, 0.0), {}, {}});
  EXPECT_TRUE(same_bytes(plain[1], packed[2]));
  EXPECT_TRUE(same_bytes(plain[2], packed[3]));
}

TEST_F(PackedAttention, ANaNKeySpoilsTheRestOfItsDocumentAndNoOther) {
  const Problem problem = attention_forward_problem(shape(90, true), kF);
  const AttentionLayout layout(problem);
  auto inputs = make_inputs(attention_kernel(), problem, 2);
  inputs[1] = first_keys({30, 40, 20});
  inputs[0][static_cast<std::size_t>(layout.key(0, 0) + 40 * layout.qkv_stride())] = std::nan("");
  for_each_target([&] {
    const auto out = run_on(*backend_, attention_kernel(), problem, inputs)[2];
    for (std::size_t t = 0; t < 90; ++t) EXPECT_EQ(std::isnan(out[t * out.size() / 90]), t >= 40 && t < 70) << t;
  });
}

TEST_F(PackedAttention, PairsAreTheFlops) {
  AttentionShape packed = shape(100, true);
  packed.pairs = 1234;
  // 4 heads, 2 products of 2 · 24 FLOPs a pair; backward 5 products.
  EXPECT_EQ(attention_kernel().cost(attention_forward_problem(packed, kF)).total_useful_flops(), 1234 * 4 * 2 * 2 * 24);
  EXPECT_EQ(attention_kernel().cost(attention_backward_problem(packed, kF)).total_useful_flops(),
            1234 * 4 * 5 * 2 * 24);
}

TEST_F(PackedAttention, Mutants_OfTheDocuments_AreCaughtAndTheUndamagedOnePasses) {
  AttentionShape documents = shape(70, true);
  documents.pairs = 70 * 6;  // documents of about a dozen tokens
  for (const Problem& problem : {attention_forward_problem(documents, kF), attention_backward_problem(documents, kF)}) {
    EXPECT_TRUE(passes_with_keys(problem, [](std::vector<std::int32_t>&) {})) << problem.id();
    EXPECT_FALSE(
        passes_with_keys(problem, [](std::vector<std::int32_t>& keys) { std::fill(keys.begin(), keys.end(), 0); }))
        << problem.id() << ": documents ignored";
    EXPECT_FALSE(passes_with_keys(problem,
                                  [](std::vector<std::int32_t>& keys) {
                                    for (std::int32_t& key : keys) key = std::max(0, key - 1);
                                  }))
        << problem.id() << ": one key of the document before";
    EXPECT_FALSE(passes_with_keys(problem,
                                  [](std::vector<std::int32_t>& keys) {
                                    for (std::size_t t = 0; t < keys.size(); ++t)
                                      keys[t] = static_cast<std::int32_t>(t);
                                  }))
        << problem.id() << ": the own key only";
  }
}

}  // namespace
}  // namespace mixroof
