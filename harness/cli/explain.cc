// mixroof explain: one topic of the list in harness/cli/explain/CMakeLists.txt.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <vector>

#include "harness/cli/explain/topic.h"
#include "harness/cli/output.h"
#include "harness/cli/subcommand.h"
#include "harness/status.h"

namespace mixroof::cli {
namespace {

std::vector<std::string> topic_names() {
  std::vector<std::string> names;
  for (const Topic& topic : all_topics()) names.push_back(topic.name);
  return names;
}

std::string topic_lines() {
  std::string lines = "Topics:";
  for (const Topic& topic : all_topics()) lines += fmt::format("\n  {:<14}{}", topic.name, topic.summary);
  return lines;
}

int explain(const std::string& wanted) {
  for (const Topic& topic : all_topics())
    if (topic.name == wanted) {
      print(page_text(topic.page(), output_width()));
      return kExitOk;
    }
  throw_unknown("topic", wanted, topic_names(), "mixroof explain --help");
}

Action declare(CLI::App& app) {
  const auto topic = std::make_shared<std::string>();
  app.add_option("topic", *topic, fmt::format("One of {}", fmt::join(topic_names(), ", ")))
      ->required()
      ->option_text("NAME");
  app.footer(topic_lines() + "\n\n" + app.get_footer());
  return [topic] { return explain(*topic); };
}

}  // namespace

Subcommand explain_subcommand() {
  return {.name = "explain",
          .summary = "Small numeric examples, computed live",
          .examples = "mixroof explain formats\nmixroof explain scaling",
          .declare = declare};
}

}  // namespace mixroof::cli
