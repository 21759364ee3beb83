// Mutants that these tests catch: interleaved pairs; positions shifted by one; angles of the wrong base; values turned
// too; keys left as they are; backward turned the way of forward; documents' positions ignored.
#include "kernels/rope/rope.h"

#include <array>
#include <cmath>
#include <numeric>

#include "kernels/kernel_test.h"
#include "kernels/rope/layout.h"

namespace mixroof {
namespace {

constexpr Format kF = Format::fp32;
constexpr double kTheta = 10000;

/// What a plain rotation can get wrong; as it stands it is right.
struct Defects {
  bool interleaved = false;  // pairs (2j, 2j+1)
  double shift = 0;          // added to every position
  double base = kTheta;
  std::int64_t first_head = 0, more_heads = 0;  // of those that are turned
  double direction = 1;
  bool ignores_ids = false;
};

void plain_rope(const Problem& problem, const Launch& launch, const Defects& defects) {
  const RopeLayout s(problem);
  float* x = floats(launch, s.turned_operand());
  const auto* ids = s.packed && !defects.ignores_ids ? static_cast<const std::int32_t*>(launch.operands[0]) : nullptr;
  const double direction = defects.direction * (problem.variant == "backward" ? -1 : 1);
  for (std::int64_t row = 0; row < s.rows(); ++row)
    for (std::int64_t head = defects.first_head; head < s.turned_heads() + defects.more_heads; ++head)
      for (std::int64_t j = 0; j < s.half(); ++j) {
        const double position = (ids ? ids[row] : static_cast<double>(row % s.seq)) + defects.shift;
        const double angle = direction * position * rope_rate(j, s.head_dim, defects.base);
        float* const at = x + row * s.stride() + head * s.head_dim;
        float& a = at[defects.interleaved ? 2 * j : j];
        float& b = at[defects.interleaved ? 2 * j + 1 : j + s.half()];
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = static_cast<float>(b * std::cos(angle) + a * std::sin(angle));
        a = static_cast<float>(turned);
      }
}

class Rope : public testing::Test {
 protected:
  bool passes(const Problem& problem, const Defects& defects) {
    return check_mutant(*backend_, rope_kernel(), problem, [&](const Launch& l) { plain_rope(problem, l, defects); })
        .pass;
  }
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
  const RopeShape shape_{.batch = 2, .seq = 9, .heads = 4, .kv_heads = 2, .head_dim = 16, .context = 12};
};

TEST_F(Rope, EveryCase_AgreesWithTheReference_OnEveryTargetOfThisProcessor) {
  expect_all_cases_pass(rope_kernel(), *backend_, 100);
}

TEST_F(Rope, CostIsCountedByHand) {
  // 6 rows, (3 + 1) heads of 8 columns are turned: 192 elements, 3 FLOPs each; read and written once, values untouched.
  RopeShape shape{.batch = 2, .seq = 3, .heads = 3, .kv_heads = 1, .head_dim = 8, .context = 3};
  const Cost plain = rope_kernel().cost(rope_forward_problem(shape, Format::bf16, kTheta));
  EXPECT_EQ(plain.useful_flops[static_cast<std::size_t>(kF)], 576);
  EXPECT_EQ(plain.bytes_read, 192 * 2);
  EXPECT_EQ(plain.bytes_written, 192 * 2);
  shape.packed = true;
  EXPECT_EQ(rope_kernel().cost(rope_forward_problem(shape, Format::bf16, kTheta)).bytes_read, 192 * 2 + 6 * 4);
}

TEST_F(Rope, ReferenceTurnsByHandComputedAngles) {
  // One head of 4: pair (0, 2) turns by the position, pair (1, 3) by a hundredth of it. The value's columns stay.
  const RopeShape shape{.batch = 1, .seq = 2, .heads = 1, .kv_heads = 1, .head_dim = 4, .context = 2};
  std::vector<double> qkv(24, 1.0);
  run_reference(rope_kernel(), rope_forward_problem(shape, kF, kTheta), {&qkv});
  for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(qkv[i], 1) << "position 0";
  for (const std::size_t head : {12, 16}) {
    EXPECT_DOUBLE_EQ(qkv[head], std::cos(1.0) - std::sin(1.0));
    EXPECT_DOUBLE_EQ(qkv[head + 1], std::cos(0.01) - std::sin(0.01));
    EXPECT_DOUBLE_EQ(qkv[head + 2], std::cos(1.0) + std::sin(1.0));
    EXPECT_DOUBLE_EQ(qkv[head + 3], std::cos(0.01) + std::sin(0.01));
  }
  for (std::size_t i = 20; i < 24; ++i) EXPECT_EQ(qkv[i], 1) << "value";
}

// A score depends on the distance of query and key alone: what rotary positions are for.
TEST_F(Rope, ScoresDependOnTheDistanceAlone) {
  const RopeShape shape{.batch = 1, .seq = 40, .heads = 1, .kv_heads = 1, .head_dim = 32, .context = 40};
  const Problem problem = rope_forward_problem(shape, kF, kTheta);
  std::vector<double> row(96);
  for (std::size_t i = 0; i < 64; ++i) row[i] = std::sin(1.0 + static_cast<double>(i * i));
  std::vector<double> qkv;
  for (int t = 0; t < 40; ++t) qkv.insert(qkv.end(), row.begin(), row.end());
  qkv = run_on(*backend_, rope_kernel(), problem, {qkv})[0];
  const auto score = [&](std::size_t query, std::size_t key) {
    return std::inner_product(&qkv[query * 96], &qkv[query * 96] + 32, &qkv[key * 96 + 32], 0.0);
  };
  EXPECT_NEAR(score(5, 2), score(39, 36), 1e-5);
  EXPECT_GT(std::fabs(score(5, 2) - score(5, 3)), 1e-2);
}

TEST_F(Rope, BackwardUndoesForward) {
  for (const bool packed : {false, true}) {
    RopeShape shape = shape_;
    shape.packed = packed;
    const Problem forward = rope_forward_problem(shape, kF, kTheta);
    const std::vector<std::vector<double>> inputs = make_inputs(rope_kernel(), forward, 3);
    std::vector<std::vector<double>> turned = run_on(*backend_, rope_kernel(), forward, inputs);
    const std::vector<double> back =
        run_on(*backend_, rope_kernel(), rope_backward_problem(shape, kF, kTheta), turned).back();
    expect_near(back, inputs.back(), {.absolute = 1e-6}, packed ? "packed" : "plain");
  }
}

TEST_F(Rope, PackedRowsTurnByTheirIds) {
  RopeShape packed = shape_;
  packed.packed = true;
  const Problem problem = rope_forward_problem(packed, kF, kTheta);
  std::vector<std::vector<double>> inputs = make_inputs(rope_kernel(), problem, 4);
  // Ids that are the places themselves: the same bits as without ids.
  for (std::size_t i = 0; i < inputs[0].size(); ++i) inputs[0][i] = static_cast<double>(i % 9);
  const auto with_ids = run_on(*backend_, rope_kernel(), problem, inputs).back();
  EXPECT_TRUE(
      same_bytes(with_ids, run_on(*backend_, rope_kernel(), rope_forward_problem(shape_, kF, kTheta), {inputs[1]})[0]));
  // Every document starts at position 0, which turns nothing.
  std::fill(inputs[0].begin(), inputs[0].end(), 0.0);
  EXPECT_TRUE(same_bytes(run_on(*backend_, rope_kernel(), problem, inputs).back(), inputs[1]));
}

TEST_F(Rope, ResultsDoNotDependOnTheNumberOfWorkers) {
  const Problem problem = rope_forward_problem(shape_, Format::bf16, kTheta);
  const auto inputs = make_inputs(rope_kernel(), problem, 1);
  const auto one = run_on(*make_cpu_backend(1), rope_kernel(), problem, inputs)[0];
  EXPECT_TRUE(same_bytes(one, run_on(*make_cpu_backend(3), rope_kernel(), problem, inputs)[0]));
}

TEST_F(Rope, Mutants_OfThePlainRotation_AreCaughtAndThePlainOnePasses) {
  RopeShape packed = shape_;
  packed.packed = true;
  for (const Problem& problem : {rope_forward_problem(shape_, kF, kTheta), rope_backward_problem(shape_, kF, kTheta),
                                 rope_forward_problem(packed, kF, kTheta)}) {
    EXPECT_TRUE(passes(problem, {})) << problem.id();
    EXPECT_FALSE(passes(problem, {.interleaved = true})) << problem.id();
    EXPECT_FALSE(passes(problem, {.shift = 1})) << problem.id();
    EXPECT_FALSE(passes(problem, {.base = 500000})) << problem.id();
    EXPECT_FALSE(passes(problem, {.more_heads = 1})) << problem.id() << ": a value head";
    EXPECT_FALSE(passes(problem, {.more_heads = -1})) << problem.id() << ": the last key head";
    EXPECT_FALSE(passes(problem, {.direction = -1})) << problem.id();
  }
  EXPECT_FALSE(passes(rope_forward_problem(packed, kF, kTheta), {.ignores_ids = true}));
}

TEST_F(Rope, ImpossibleProblemsNameTheDimension) {
  const auto message = [&](const std::function<void(RopeShape&)>& change) {
    RopeShape shape = shape_;
    change(shape);
    return usage_error_of([&] { rope_forward_problem(shape, kF, kTheta); });
  };
  EXPECT_THAT(message([](RopeShape& s) { s.head_dim = 7; }), testing::HasSubstr("head_dim=7 is odd"));
  EXPECT_THAT(message([](RopeShape& s) { s.context = 8; }), testing::HasSubstr("context=8"));
  EXPECT_THAT(message([](RopeShape& s) { s.heads = 0; }), testing::HasSubstr("heads=0"));
  EXPECT_EQ(message([](RopeShape&) {}), "");
}

}  // namespace
}  // namespace mixroof
