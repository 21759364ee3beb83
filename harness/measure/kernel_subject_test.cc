#include "harness/measure/kernel_subject.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/stream/stream.h"

namespace mixroof {
namespace {

/// x[count] ← x + 1 in place.
class IncrementKernel : public Kernel {
 public:
  std::string_view name() const override { return "increment"; }
  std::string_view summary() const override { return "test"; }
  std::vector<Operand> operands(const Problem& problem) const override {
    return {{.name = "x", .access = Access::read_write, .extent = {problem.dim("count")}}};
  }
  Cost cost(const Problem& problem) const override { return compulsory_bytes(problem); }
  void reference(const Problem&, std::span<const RefOperand>) const override {}
  double limit(const Problem&, std::size_t, double, double) const override { return 0; }
  std::vector<Case> cases() const override { return {}; }
  std::optional<Problem> problem(const Recipe&, const Case&) const override { return std::nullopt; }
};

/// Keeps the value that each run found.
class IncrementPlan : public Plan {
 public:
  explicit IncrementPlan(std::vector<float>& found) : found_(found) {}
  void run(const Launch& launch) const override {
    auto* x = static_cast<float*>(launch.operands[0]);
    found_.push_back(x[0]);
    x[0] += 1;
  }
  std::string implementation() const override { return "test"; }

 private:
  std::vector<float>& found_;
};

Problem increment_problem() {
  return {.kernel = "increment", .variant = "", .shape = {{"count", 16}}, .formats = {Format::fp32}, .constants = {}};
}

TEST(KernelSubject, InPlaceOperands_AreRestoredBeforeEachSample) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  const IncrementKernel kernel;
  std::vector<float> found;
  KernelSubject subject(*backend, kernel, increment_problem(), std::make_unique<IncrementPlan>(found), CacheState::cold,
                        1);
  for (int sample = 0; sample < 3; ++sample) {
    subject.prepare_sample();
    subject.run(1);
  }
  EXPECT_EQ(found, std::vector<float>(3, found.front()));
}

TEST(KernelSubject, HotSamples_StartFromRestoredOperandsAfterAnUntimedRun) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  const IncrementKernel kernel;
  std::vector<float> found;
  KernelSubject subject(*backend, kernel, increment_problem(), std::make_unique<IncrementPlan>(found), CacheState::hot,
                        1);
  subject.prepare_sample();
  const std::size_t untimed = found.size();
  subject.run(3);
  const float first = found.at(0);
  ASSERT_EQ(found.size(), untimed + 3);
  EXPECT_EQ(found[untimed], first);
  EXPECT_EQ(found[untimed + 2], first + 2);
}

TEST(KernelSubject, OnlyHotSubjects_RepeatWithinASample) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  const auto most = [&](const Kernel& kernel, const Problem& problem, CacheState state) {
    std::vector<float> found;
    return KernelSubject(*backend, kernel, problem, std::make_unique<IncrementPlan>(found), state, 1).max_repetitions();
  };
  const IncrementKernel in_place;
  EXPECT_EQ(most(in_place, increment_problem(), CacheState::cold), 1);
  EXPECT_EQ(most(in_place, increment_problem(), CacheState::hot), 1000);
  EXPECT_GT(most(stream_kernel(), stream_problem("copy", 64, false), CacheState::hot), 1000000);
  EXPECT_THROW(most(in_place, increment_problem(), CacheState::in_step), std::logic_error);
}

TEST(KernelSubject, ARealKernel_TakesTimeInBothStates) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(2);
  const Problem problem = stream_problem("triad", 20000, false);
  for (const CacheState state : {CacheState::cold, CacheState::hot}) {
    KernelSubject subject(*backend, stream_kernel(), problem, backend->prepare(problem), state, 1);
    SamplingOptions options;
    options.budget_s = 0.2;
    options.max_samples = 10;
    const SampleResult result = sample(subject, options);
    EXPECT_GE(result.summary.n, 1);
    EXPECT_GT(result.summary.median, 0);
    EXPECT_EQ(subject.operand_bytes(), 3 * 20000 * 4);
  }
}

TEST(KernelSubject, WorkOf_IsTheCostAsTheRooflineSeesIt) {
  const Work work = work_of(stream_kernel().cost(stream_problem("triad", 1000, false)), true);
  EXPECT_EQ(work.flops[static_cast<std::size_t>(Format::fp32)], 2000);
  EXPECT_EQ(work.bytes_read, 8000);
  EXPECT_EQ(work.bytes_written, 4000);
  EXPECT_TRUE(work.emulated);
}

}  // namespace
}  // namespace mixroof
