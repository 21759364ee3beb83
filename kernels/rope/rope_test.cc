#include "kernels/rope/rope.h"

#include "kernels/kernel_test.h"

namespace mixroof {
namespace {

TEST(Rope, EveryCase_AgreesWithTheReference_OnEveryTargetOfThisProcessor) {
  expect_all_cases_pass(rope_kernel(), *make_cpu_backend(2), 100);
}

}  // namespace
}  // namespace mixroof
