#include "harness/cli/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <stdexcept>

namespace mixroof::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

int widest_line(const std::string& text) {
  std::istringstream lines(text);
  int widest = 0;
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, display_width(line));
  return widest;
}

Table sample() {
  Table table({{"name"}, {"rate", Align::right}, {"extra", Align::right, 1}, {"why"}});
  table.add_row({"matmul", "201.5 GFLOP/s", "1234567", "the product of two matrices in the format of the recipe"});
  table.add_row({"norm", "-", "7", ""});
  return table;
}

TEST(Table, AlignsColumns_TextLeftNumbersRight) {
  Table table({{"name"}, {"count", Align::right}});
  table.add_row({"a", "12345"});
  table.add_row({"longer", "7"});
  EXPECT_EQ(table.text(),
            "name    count\n"
            "a       12345\n"
            "longer      7\n");
}

TEST(Table, InANarrowTerminal_TextIsFoldedAndNumbersStayWhole) {
  const std::string text = sample().text(60);
  EXPECT_LE(widest_line(text), 60);
  EXPECT_THAT(text, HasSubstr("201.5 GFLOP/s"));
  EXPECT_THAT(text, HasSubstr("1234567"));
  EXPECT_THAT(text, Not(HasSubstr("left out")));
}

TEST(Table, InAVeryNarrowTerminal_TheLeastImportantColumnIsLeftOutAndNamed) {
  // name 6 + rate 13 + extra 7 + why at least 18 + 3 gaps of 2 = 50.
  const std::string text = sample().text(44);
  EXPECT_THAT(text, Not(HasSubstr("1234567")));
  EXPECT_THAT(text, HasSubstr("201.5 GFLOP/s"));
  EXPECT_THAT(text, HasSubstr("left out in 44 columns of terminal: extra"));
}

TEST(Table, NumbersThatMustStay_PassTheWidthRatherThanBeingCut) {
  EXPECT_THAT(sample().text(10), HasSubstr("201.5 GFLOP/s"));
}

TEST(Table, Markdown_EscapesBarsAndMarksNumbers) {
  Table table({{"name"}, {"n", Align::right}});
  table.add_row({"a|b", "1"});
  EXPECT_EQ(table.markdown(), "| name | n |\n| --- | ---: |\n| a\\|b | 1 |\n");
}

TEST(Table, Width_CountsCharactersNotBytes) {
  EXPECT_EQ(display_width("größe"), 5);
  EXPECT_EQ(display_width("e\xCC\x81"), 1);  // e with a combining acute accent
  EXPECT_EQ(display_width("漢字"), 4);       // wide
  EXPECT_EQ(display_width("\xFF\xC3"), 2);   // not UTF-8: a byte each
  Table table({{"größe", Align::left}, {"n", Align::right}});
  table.add_row({"µ", "1"});
  EXPECT_EQ(table.text(), "größe  n\nµ      1\n");
}

TEST(Table, ControlCharactersOfACell_DoNotBreakTheLine) {
  Table table({{"name"}});
  table.add_row({"a\nb\x1b[31m"});
  EXPECT_EQ(table.text(), "name\na b [31m\n");
}

TEST(Table, MoreCellsThanColumns_IsADefectOfTheCaller) {
  Table table({{"name"}});
  EXPECT_THROW(table.add_row({"a", "b"}), std::logic_error);
}

}  // namespace
}  // namespace mixroof::cli
