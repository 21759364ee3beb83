// Topics of `mixroof explain`: small numeric examples, computed live with the product's own code. To add one: a file
// <name>.cc that defines `Topic <name>_topic()`, and its name in the list of CMakeLists.txt, from which topics.cc is
// generated; help, near names and tests follow from the list. What a topic computes is declared in <name>.h, apart from
// what it says, so that tests compare numbers.
#pragma once

#include <span>
#include <string>

#include "harness/cli/explain/page.h"

namespace mixroof::cli {

struct Topic {
  std::string name;
  std::string summary;  // one line of `mixroof explain --help`
  Page (*page)();       // computes the numbers
};

/// Every topic, in the order of help.
std::span<const Topic> all_topics();

}  // namespace mixroof::cli
