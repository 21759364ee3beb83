// mixroof explain: topics are listed here, each has a file of its own.
#include "harness/cli/explain.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <memory>
#include <vector>

#include "harness/cli/output.h"
#include "harness/cli/subcommand.h"
#include "harness/status.h"

namespace mixroof::cli {
namespace {

struct Topic {
  std::string_view name;
  std::string (*text)(int width);
};
constexpr std::array kTopics = std::to_array<Topic>({{"formats", explain_formats}});

std::vector<std::string> topic_names() {
  std::vector<std::string> names;
  for (const Topic& topic : kTopics) names.emplace_back(topic.name);
  return names;
}

int explain(const std::string& wanted) {
  for (const Topic& topic : kTopics)
    if (topic.name == wanted) {
      print(topic.text(output_width()));
      return kExitOk;
    }
  throw_unknown("topic", wanted, topic_names(), "mixroof explain --help");
}

Action declare(CLI::App& app) {
  const auto topic = std::make_shared<std::string>();
  app.add_option("topic", *topic, fmt::format("One of {}", fmt::join(topic_names(), ", ")))
      ->required()
      ->option_text("NAME");
  return [topic] { return explain(*topic); };
}

}  // namespace

Subcommand explain_subcommand() {
  return {.name = "explain",
          .summary = "Small numeric examples, computed live",
          .examples = "mixroof explain formats",
          .declare = declare};
}

}  // namespace mixroof::cli
