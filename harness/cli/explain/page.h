// What a topic of `mixroof explain` shows: short sections with a table each, then the rule that they show.
#pragma once

#include <string>
#include <vector>

#include "harness/cli/table.h"

namespace mixroof::cli {

struct Section {
  std::string title;
  std::string text;       // what is computed and by which code; may be empty
  Table table;
  std::string note = {};  // what to see in the table; may be empty
};

struct Page {
  std::string summary;            // the loss that the topic is about, in a sentence or two
  std::vector<Section> sections;  // the most important first
  std::string rule;
};

/// Plain text for `width` cells; 0, not a terminal: prose of 80 cells and tables as wide as needed.
std::string page_text(const Page& page, int width);

/// Nine digits at most; NaN without the sign that a payload may carry.
std::string number(double value);
/// 2^-10 rather than 0.0009765625 where the value is a power of two below 1; else as number().
std::string small_number(double value);

}  // namespace mixroof::cli
