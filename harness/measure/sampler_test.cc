#include "harness/measure/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "harness/measure/fake_subject.h"

namespace mixroof {
namespace {

// One repetition a sample, so that the fake times are the samples.
SamplingOptions plain(double budget_s) {
  SamplingOptions options;
  options.budget_s = budget_s;
  options.min_sample_s = 0;
  return options;
}

TEST(Sampler, SteadyTimes_ConvergeAtTheMinimumOfSamples) {
  FakeClock clock;
  FakeSubject subject(clock, {3e-3});
  const SampleResult result = sample(subject, plain(1), {}, clock);
  EXPECT_EQ(result.reason, StopReason::target);
  EXPECT_TRUE(result.summary.converged);
  EXPECT_EQ(result.summary.n, 8);
  EXPECT_DOUBLE_EQ(result.summary.median, 3e-3);
  EXPECT_EQ(result.warmup_runs, 2);  // two in a row that agree
  EXPECT_EQ(subject.preparations(), subject.runs());
}

TEST(Sampler, AKnownDistribution_GivesItsMedianAndIntervalExactly) {
  // Two warm-up runs take 1 and 1, then the ten samples 1 … 10 in disorder: median 5.5, interval [2, 9] at 97.85 %.
  FakeClock clock;
  FakeSubject subject(clock, {1, 1, 7, 3, 10, 1, 5, 9, 2, 8, 4, 6});
  SamplingOptions options = plain(1000);
  options.min_samples = options.max_samples = 10;
  const SampleResult result = sample(subject, options, {}, clock);
  EXPECT_EQ(result.reason, StopReason::max_samples);
  EXPECT_FALSE(result.summary.converged);
  EXPECT_EQ(result.summary.n, 10);
  EXPECT_DOUBLE_EQ(result.summary.median, 5.5);
  EXPECT_EQ(result.summary.low, 2);
  EXPECT_EQ(result.summary.high, 9);
  EXPECT_DOUBLE_EQ(result.summary.confidence, 0.978515625);
}

TEST(Sampler, Sta3_NoiseThatNeverShrinks_EndsEarlyAndIsNotConverged) {  // cases.md STA-3
  FakeClock clock;
  FakeSubject subject(clock, {3e-6, 6e-6});
  SamplingOptions options = plain(15);
  options.target_half_width = 0.005;
  const double start_s = clock.now_s();
  const SampleResult result = sample(subject, options, {}, clock);
  EXPECT_EQ(result.reason, StopReason::no_improvement);
  EXPECT_FALSE(result.summary.converged);
  EXPECT_EQ(result.summary.n, 32);  // checked at 8, 16 and 32
  EXPECT_NEAR(result.summary.mean, 4.5e-6, 1e-15);
  // 1.5 µs, with n − 1: 1.5·√(32/31).
  EXPECT_NEAR(*result.summary.stddev, 1.5e-6 * std::sqrt(32.0 / 31.0), 1e-15);
  EXPECT_LT(clock.now_s() - start_s, 0.01);  // nowhere near the 15 s
}

TEST(Sampler, Sta3_TheBudgetIsWallTime_UntimedSetUpIncluded) {  // cases.md STA-3
  FakeClock clock;
  FakeSubject subject(clock, {1e-3, 2e-3}, /*setup_s=*/1.0);
  const double start_s = clock.now_s();
  const SampleResult result = sample(subject, plain(5), {}, clock);
  EXPECT_EQ(result.reason, StopReason::budget);
  EXPECT_FALSE(result.summary.converged);
  EXPECT_EQ(result.summary.n, 4);  // and one warm-up run: five of a second each
  EXPECT_LE(clock.now_s() - start_s, 5 + 1.002);
}

TEST(Sampler, Sta3_OneRunLongerThanTheBudget_IsKeptAsTheOnlySample) {  // cases.md STA-3
  FakeClock clock;
  FakeSubject subject(clock, {10.0});
  const SampleResult result = sample(subject, plain(1), {}, clock);
  EXPECT_EQ(subject.runs(), 1);
  EXPECT_EQ(result.summary.n, 1);
  EXPECT_EQ(result.summary.median, 10.0);
  EXPECT_EQ(result.reason, StopReason::budget);
}

TEST(Sampler, Sta2_RepetitionsAre64Bit) {  // cases.md STA-2
  FakeClock clock;
  FakeSubject subject(clock, {0.3e-9});
  SamplingOptions options = plain(100000);
  options.min_sample_s = 10;
  const SampleResult result = sample(subject, options, {}, clock);
  EXPECT_GE(result.repetitions, 33333333333);  // 10 s / 0.3 ns = 3.3e10, above 2³¹
  EXPECT_NEAR(result.summary.median, 0.3e-9, 1e-18);
}

TEST(Sampler, Sta2_AClockThatRunsBackwards_GivesNoSampleAndEnds) {  // cases.md STA-2
  FakeClock clock;
  FakeSubject subject(clock, {-10, 0});
  SamplingOptions options = plain(1);
  const SampleResult result = sample(subject, options, {}, clock);
  EXPECT_EQ(result.reason, StopReason::invalid_clock);
  EXPECT_EQ(result.summary.n, 0);
  EXPECT_EQ(result.summary.discarded, 20);
}

TEST(Sampler, BatchesGrowUntilTheTimersResolutionIsBelowHalfAPercent) {
  FakeClock clock(/*resolution_s=*/1e-6);
  FakeSubject subject(clock, {1e-6});
  const SampleResult result = sample(subject, plain(1), {}, clock);
  EXPECT_GE(result.repetitions, 200);  // 1 µs is 0.5 % of 200 µs
  EXPECT_LE(result.repetitions, 2000);
  EXPECT_NEAR(result.summary.median, 1e-6, 1e-15);
}

TEST(Sampler, ASubjectThatNeedsPreparationEachTime_IsNeverBatched) {
  struct Cold : FakeSubject {
    using FakeSubject::FakeSubject;
    std::int64_t max_repetitions() const override { return 1; }
  };
  FakeClock clock(1e-6);
  Cold subject(clock, {1e-6});
  EXPECT_EQ(sample(subject, plain(1), {}, clock).repetitions, 1);
}

TEST(Sampler, TheStopToken_EndsAfterTheCurrentSample) {
  FakeClock clock;
  FakeSubject first(clock, {1e-3, 2e-3}), second(clock, {1e-3, 2e-3});
  std::vector<Subject*> subjects = {&first, &second};
  std::vector<Block> blocks;
  int asked = 0;
  const auto results = sample_interleaved(
      subjects, plain(100), 4, 1,
      {.on_block = [&](const Block& b) { blocks.push_back(b); }, .stop = [&] { return ++asked >= 6; }}, clock);
  ASSERT_EQ(blocks.size(), 2u);  // four samples of one subject, two of the other
  EXPECT_EQ(blocks[0].samples.size(), 4u);
  EXPECT_EQ(blocks[1].samples.size(), 2u);
  for (const SampleResult& result : results) EXPECT_EQ(result.reason, StopReason::stopped);
}

std::vector<std::size_t> order_of_blocks(std::uint64_t seed) {
  FakeClock clock;
  FakeSubject a(clock, {1e-3, 2e-3}), b(clock, {1e-3, 2e-3}), c(clock, {1e-3, 2e-3});
  std::vector<Subject*> subjects = {&a, &b, &c};
  std::vector<std::size_t> order;
  SamplingOptions options = plain(100);
  options.max_samples = 40;
  sample_interleaved(subjects, options, 4, seed,
                     {.on_block = [&](const Block& block) { order.push_back(block.subject); }}, clock);
  return order;
}

TEST(Sampler, Interleaving_FollowsTheSeedAndVisitsAllInEachRound) {
  const std::vector<std::size_t> order = order_of_blocks(7);
  EXPECT_EQ(order, order_of_blocks(7));
  EXPECT_NE(order, order_of_blocks(8));
  ASSERT_EQ(order.size(), 24u);  // 32 samples each, in blocks of 4
  for (std::size_t round = 0; round < order.size(); round += 3) {
    std::vector<std::size_t> visited(order.begin() + static_cast<long>(round),
                                     order.begin() + static_cast<long>(round) + 3);
    std::sort(visited.begin(), visited.end());
    EXPECT_EQ(visited, (std::vector<std::size_t>{0, 1, 2}));
  }
}

TEST(Sampler, BlocksHoldEverySampleOfTheSummary) {
  FakeClock clock;
  FakeSubject a(clock, {1e-3, 2e-3, 3e-3}), b(clock, {5e-3});
  std::vector<Subject*> subjects = {&a, &b};
  std::vector<std::vector<double>> collected(2);
  const auto results =
      sample_interleaved(subjects, plain(100), 5, 3,
                         {.on_block =
                              [&](const Block& block) {
                                collected[block.subject].insert(collected[block.subject].end(), block.samples.begin(),
                                                                block.samples.end());
                              },
                          .stop = {}},
                         clock);
  EXPECT_EQ(results[0].summary.samples, collected[0]);
  EXPECT_EQ(results[1].summary.samples, collected[1]);
}

TEST(Sampler, ASlowSubject_StarvesNoOther) {
  FakeClock clock;
  FakeSubject slow(clock, {0.4, 0.5}), fast(clock, {1e-6}), late(clock, {1e-6});
  std::vector<Subject*> subjects = {&slow, &fast, &late};
  const double start_s = clock.now_s();
  const auto results = sample_interleaved(subjects, plain(1), 8, 1, {}, clock);
  EXPECT_EQ(results[1].reason, StopReason::target);
  EXPECT_EQ(results[2].reason, StopReason::target);
  EXPECT_GE(results[0].summary.n, 1);
  EXPECT_LE(clock.now_s() - start_s, 1.5);
}

TEST(Sampler, NoSubjects_GiveNoResults) { EXPECT_TRUE(sample_interleaved({}, plain(1), 4, 1).empty()); }

TEST(SteadyClock, TellsItsResolution) {
  EXPECT_GT(steady_clock().resolution_s(), 0);
  EXPECT_LT(steady_clock().resolution_s(), 1e-3);
}

}  // namespace
}  // namespace mixroof
