// Pages of all topics: what a reader sees, at any width. The numbers are compared in <topic>_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "harness/cli/explain/topic.h"

namespace mixroof::cli {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// Pages are computed once: every test reads the same.
const std::vector<std::pair<std::string, Page>>& pages() {
  static const std::vector<std::pair<std::string, Page>> all = [] {
    std::vector<std::pair<std::string, Page>> computed;
    for (const Topic& topic : all_topics()) computed.emplace_back(topic.name, topic.page());
    return computed;
  }();
  return all;
}

int widest_line(const std::string& text) {
  std::istringstream lines(text);
  int widest = 0;
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, display_width(line));
  return widest;
}

TEST(Explain, NamesEveryTopicOfTheManual) {
  std::set<std::string> names;
  for (const Topic& topic : all_topics()) {
    names.insert(topic.name);
    EXPECT_FALSE(topic.summary.empty()) << topic.name;
    EXPECT_LE(topic.summary.size(), 62u) << topic.name << ": one line of --help";
  }
  EXPECT_EQ(names, (std::set<std::string>{"formats", "absorption", "accumulation", "scaling", "clipping", "denominators",
                                          "fp8"}));
}

TEST(Explain, EveryPage_HasSectionsWithNumbersAndEndsWithItsRule) {
  for (const auto& [name, page] : pages()) {
    EXPECT_FALSE(page.summary.empty()) << name;
    EXPECT_GE(page.sections.size(), 3u) << name;
    for (const Section& section : page.sections) EXPECT_FALSE(section.table.empty()) << name << ": " << section.title;
    const std::string text = page_text(page, 200);
    const std::size_t rule = text.rfind("\nRule: ");
    ASSERT_NE(rule, std::string::npos) << name;
    EXPECT_EQ(text.find("\n\n", rule + 1), std::string::npos) << name << ": the rule is the last paragraph";
  }
}

TEST(Explain, EveryPage_FitsTerminalsOf80And60Columns) {
  for (const auto& [name, page] : pages())
    for (const int width : {80, 60}) EXPECT_LE(widest_line(page_text(page, width)), width) << name;
}

TEST(Explain, EveryPage_IsPlainText) {
  for (const auto& [name, page] : pages())
    for (const char c : page_text(page, 0))
      ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << name << ": byte " << static_cast<int>(c);
}

TEST(Page, ProseIsFoldedAndTablesAreNot_WithoutATerminal) {
  Table table({{"what"}, {"value", Align::right}});
  table.add_row({std::string(90, 'x'), "1"});
  std::string prose;
  for (int i = 0; i < 30; ++i) prose += "word ";
  const std::string text = page_text({.summary = prose, .sections = {{"Title", prose, table}}, .rule = "one."}, 0);
  EXPECT_THAT(text, StartsWith("word word"));
  EXPECT_THAT(text, HasSubstr(std::string(90, 'x') + "      1\n"));
  EXPECT_THAT(text, HasSubstr("Title\n-----\nword"));
  EXPECT_LE(text.find('\n'), 80u);
}

TEST(Page, ASectionWithoutText_StartsWithItsTable) {
  Table table({{"what"}});
  table.add_row({"row"});
  EXPECT_EQ(page_text({.summary = "Sum.", .sections = {{"Title", "", table, "Note."}}, .rule = "one."}, 80),
            "Sum.\n\nTitle\n-----\nwhat\nrow\n\nNote.\n\nRule: one.\n");
}

TEST(Number, PowersOfTwoBelowOne_AreWrittenAsSuch) {
  EXPECT_EQ(small_number(0x1p-26), "2^-26");
  EXPECT_EQ(small_number(1), "1");
  EXPECT_EQ(small_number(0), "0");
  EXPECT_EQ(small_number(-0.5), "-0.5");
  EXPECT_EQ(small_number(0.94140625), "0.94140625");
}

}  // namespace
}  // namespace mixroof::cli
