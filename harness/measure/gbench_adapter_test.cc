#include "harness/measure/gbench_adapter.h"

#include <gtest/gtest.h>

#include "harness/measure/fake_subject.h"

namespace mixroof {
namespace {

class Collector : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override { all.insert(all.end(), runs.begin(), runs.end()); }
  std::vector<Run> all;
};

Collector::Run run_one(const std::string& name) {
  Collector collector;
  benchmark::RunSpecifiedBenchmarks(&collector, "^" + name + "/");
  EXPECT_EQ(collector.all.size(), 1u);
  return collector.all.at(0);
}

TEST(GbenchAdapter, RatesAreWorkOverTheSubjectsTime) {
  FakeClock clock;
  // 2 ms each, of which the process spends nothing: a rate by CPU time would be off by orders of magnitude.
  const auto record =
      register_subject("rate", [&] { return std::make_unique<FakeSubject>(clock, std::vector<double>{2e-3}); },
                       {.counter = "byte_per_s", .work = 1000});
  const Collector::Run run = run_one("rate");
  EXPECT_FALSE(run.error_occurred);
  EXPECT_NEAR(run.real_accumulated_time / static_cast<double>(run.iterations), 2e-3, 1e-9);
  EXPECT_NEAR(run.counters.at("byte_per_s").value, 500000, 1);
  EXPECT_EQ(record->repetitions, 1);
}

TEST(GbenchAdapter, OnlyTheLastRunsSamplesAreKept) {
  FakeClock clock;
  FakeSubject* subject = nullptr;
  const auto record = register_subject("last", [&] {
    auto made = std::make_unique<FakeSubject>(clock, std::vector<double>{1e-3});
    subject = made.get();
    return made;
  });
  const Collector::Run run = run_one("last");
  EXPECT_EQ(static_cast<std::int64_t>(record->samples.size()), run.iterations);
  EXPECT_GT(subject->runs(), run.iterations);  // entered before with smaller counts
  EXPECT_EQ(subject->preparations(), subject->runs());
}

TEST(GbenchAdapter, ShortSubjects_AreBatchedAndTheTimeIsThatOfOneRepetition) {
  FakeClock clock;
  const auto record =
      register_subject("short", [&] { return std::make_unique<FakeSubject>(clock, std::vector<double>{1e-6}); });
  const Collector::Run run = run_one("short");
  EXPECT_EQ(record->repetitions, 1024);  // the first power of two at or above 1 ms
  EXPECT_NEAR(run.real_accumulated_time / static_cast<double>(run.iterations), 1e-6, 1e-12);
  EXPECT_NEAR(record->samples.at(0), 1e-6, 1e-12);
}

TEST(GbenchAdapter, ASubjectThatCannotBeMade_IsAnErrorOfItsBenchmarkOnly) {
  const auto record = register_subject(
      "broken", []() -> std::unique_ptr<Subject> { throw Error(Status::out_of_memory, "no memory for 8 bytes"); });
  const Collector::Run run = run_one("broken");
  EXPECT_TRUE(run.error_occurred);
  EXPECT_EQ(run.error_message, "no memory for 8 bytes");
  EXPECT_EQ(record->status, Status::out_of_memory);
  EXPECT_EQ(record->reason, "no memory for 8 bytes");
}

TEST(GbenchAdapter, AGivenNumberOfRepetitions_IsKeptAndEachIsASample) {
  FakeClock clock;
  const auto record = register_subject(
      "given", [&] { return std::make_unique<FakeSubject>(clock, std::vector<double>{1e-6}); }, {.iterations = 5});
  const Collector::Run run = run_one("given");
  EXPECT_EQ(run.iterations, 5);
  EXPECT_EQ(record->samples.size(), 5u);
  EXPECT_EQ(record->status, Status::ok);
}

}  // namespace
}  // namespace mixroof
