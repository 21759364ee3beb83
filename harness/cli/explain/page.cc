#include "harness/cli/explain/page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace mixroof::cli {
namespace {

constexpr int kProseWidth = 80;  // longer lines are hard to read

std::string paragraph(const std::string& text, int width) {
  if (text.empty()) return "";
  const int limit = width > 0 ? std::min(width, kProseWidth) : kProseWidth;
  return fmt::format("{}\n", fmt::join(fold(text, limit), "\n"));
}

std::string section_text(const Section& section, int width) {
  const std::string title = paragraph(section.title, width);
  const std::string underline(title.find('\n'), '-');
  const std::string text = paragraph(section.text, width), note = paragraph(section.note, width);
  return fmt::format("\n{}{}\n{}{}{}{}{}", title, underline, text, text.empty() ? "" : "\n", section.table.text(width),
                     note.empty() ? "" : "\n", note);
}

}  // namespace

std::string page_text(const Page& page, int width) {
  std::string text = paragraph(page.summary, width);
  for (const Section& section : page.sections) text += section_text(section, width);
  return text + "\n" + paragraph("Rule: " + page.rule, width);
}

std::string number(double value) { return std::isnan(value) ? "nan" : fmt::format("{:.9g}", value); }

std::string small_number(double value) {
  int exponent = 0;
  const bool is_power_of_two = value > 0 && value < 1 && std::frexp(value, &exponent) == 0.5;
  return is_power_of_two ? fmt::format("2^{}", exponent - 1) : number(value);
}

}  // namespace mixroof::cli
