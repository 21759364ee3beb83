#include "harness/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "harness/numeric/checked.h"

namespace mixroof {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Status, TheThirteenWordsOfTheResultSchema) {
  std::set<std::string_view> words;
  for (int i = 0; i <= static_cast<int>(Status::failed); ++i) words.insert(name(static_cast<Status>(i)));
  EXPECT_EQ(words, (std::set<std::string_view>{"ok", "not_built", "no_device", "not_supported", "invalid_problem",
                                               "out_of_memory", "skipped", "incorrect", "untrusted", "not_converged",
                                               "timed_out", "interrupted", "failed"}));
}

TEST(Status, AnErrorCarriesItsStatusAndItsLine) {
  const Error error(Status::not_supported, "no AVX2");
  EXPECT_EQ(error.status(), Status::not_supported);
  EXPECT_STREQ(error.what(), "no AVX2");
}

TEST(Support, YesByDefault_NoWithAReason) {
  EXPECT_TRUE(Support{});
  const Support no = Support::no("needs AVX2");
  EXPECT_FALSE(no);
  EXPECT_EQ(no.reason, "needs AVX2");
}

const std::vector<std::string> kFruits{"pear", "apple", "apply", "plum"};

TEST(NearestNames, BestFirst_EqualDistancesInTheOrderGiven) {
  // Distances from "appl": pear 4, apple 1, apply 1, plum 4.
  EXPECT_THAT(nearest_names("appl", kFruits), ElementsAre("apple", "apply", "pear"));
  EXPECT_THAT(nearest_names("plum", kFruits, 1), ElementsAre("plum"));
  EXPECT_THAT(nearest_names("plum", {}), IsEmpty());
}

TEST(ThrowUnknown, NamesTheValueTheNearestAndTheList) {
  try {
    throw_unknown("fruit", "appel", kFruits, "market list");
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "unknown fruit 'appel'; did you mean apple, apply, pear? (all of them: market list)");
  }
}

TEST(Checked, CountsPast63Bits_AreRefused) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(checked_product({}), 1);
  EXPECT_EQ(checked_product({3, 0, kMost}), 0);
  // 2^62 * 1 still fits, 2^31 * 2^32 = 2^63 does not.
  EXPECT_EQ(checked_product({std::int64_t{1} << 31, std::int64_t{1} << 31}), std::int64_t{1} << 62);
  EXPECT_THROW(checked_product({std::int64_t{1} << 31, std::int64_t{1} << 32}), Error);
  EXPECT_EQ(checked_sum(kMost - 1, 1), kMost);
  EXPECT_THROW(checked_sum(kMost, 1), Error);
}

}  // namespace
}  // namespace mixroof
