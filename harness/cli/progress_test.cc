#include "harness/cli/progress.h"

#include <gtest/gtest.h>

namespace mixroof::cli {
namespace {

TEST(Progress, TheLineTells_WhatHowFarHowNoisyAndHowLong) {
  EXPECT_EQ(progress_text({.what = "matmul fp32", .done = 12, .total = 40, .noise = 0.012, .time_left_s = 35}),
            "[12/40] matmul fp32, noise 1.2 %, 35 s left");
  EXPECT_EQ(progress_text({.what = "ceilings"}), "ceilings");
  EXPECT_EQ(progress_text({.what = "steps", .time_left_s = 600}), "steps, 10 min left");
}

TEST(Progress, WithoutATerminal_OnlyFinishedCasesAreWritten) {
  testing::internal::CaptureStderr();
  {
    Progress progress;
    progress.show({.what = "running"});
    progress.finish_case("matmul fp32: ok");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "matmul fp32: ok\n");
}

}  // namespace
}  // namespace mixroof::cli
