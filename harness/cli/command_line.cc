// Parsing and near names for misspelt words.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "harness/cli/exit_codes.h"
#include "harness/cli/output.h"
#include "harness/cli/subcommand.h"
#include "harness/status.h"

namespace mixroof::cli {
namespace {

struct Program {
  CLI::App app{"What each precision path of training costs on this machine, and what it buys.", "mixroof"};
  std::vector<std::pair<CLI::App*, Action>> actions;
};

std::string example_footer(std::string_view examples) {
  std::string footer = "Examples:";
  while (!examples.empty()) {
    const std::size_t end = std::min(examples.find('\n'), examples.size());
    footer += fmt::format("\n  {}", examples.substr(0, end));
    examples.remove_prefix(std::min(end + 1, examples.size()));
  }
  return footer;
}

void declare(Program& program) {
  CLI::App& app = program.app;
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", std::string("mixroof " MIXROOF_VERSION), "Print the version and exit");
  app.footer(
      example_footer("mixroof doctor\n"
                     "mixroof list recipes\n"
                     "mixroof check --kernel norm --recipe bf16-master") +
      "\n\nExit codes: 0 all well; 1 a finding; 2 wrong usage or input; 3 this machine cannot do it; 130 interrupted.");
  for (const Subcommand& subcommand : all_subcommands()) {
    CLI::App* sub = app.add_subcommand(subcommand.name, subcommand.summary);
    sub->footer(example_footer(subcommand.examples));
    program.actions.emplace_back(sub, subcommand.declare(*sub));
  }
}

/// The subcommand that was named, or the program itself.
const CLI::App& selected(const CLI::App& app) {
  const auto subcommands = app.get_subcommands();
  return subcommands.empty() ? app : *subcommands.front();
}

std::string help_command(const CLI::App& app) {
  return app.get_parent() ? fmt::format("mixroof {} --help", app.get_name()) : "mixroof --help";
}

[[noreturn]] void throw_unknown_word(const CLI::App& app, const std::string& word) {
  const CLI::App& at = selected(app);
  const std::string help = help_command(at);
  std::vector<std::string> valid;
  if (word.starts_with('-') && word != "-" && word != "--") {
    for (const CLI::Option* option : at.get_options())
      for (const std::string& name : option->get_lnames()) valid.push_back("--" + name);
    throw_unknown("option", word.substr(0, word.find('=')), valid, help);
  }
  if (at.get_parent())
    throw UsageError(fmt::format("'{}' is one word too many after 'mixroof {}'; leave it out or name its option ({})",
                                 word, at.get_name(), help));
  for (const Subcommand& subcommand : all_subcommands()) valid.push_back(subcommand.name);
  throw_unknown("subcommand", word, valid, help);
}

/// Parses; the exit code when there is nothing to run (--help, --version).
std::optional<int> parse(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    print(app.help());
    return kExitOk;
  } catch (const CLI::CallForVersion& version) {
    print(std::string(version.what()) + "\n");
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    // An unknown word explains a missing option better than the missing option does.
    if (const auto words = app.remaining(true); !words.empty()) throw_unknown_word(app, words.front());
    throw UsageError(fmt::format("{} ({})", error.what(), help_command(selected(app))));
  }
  return std::nullopt;
}

int parse_and_run(int argc, const char* const* argv) {
  const auto program = std::make_unique<Program>();
  declare(*program);
  if (const std::optional<int> code = parse(program->app, argc, argv)) return *code;
  for (const auto& [app, action] : program->actions)
    if (app->parsed()) return action();
  std::vector<std::string> names;
  for (const Subcommand& subcommand : all_subcommands()) names.push_back(subcommand.name);
  throw UsageError(fmt::format("no subcommand; give one of {} (mixroof --help)", fmt::join(names, ", ")));
}

}  // namespace

int run_command_line(int argc, const char* const* argv) {
  return exit_code_of("mixroof", [&] { return parse_and_run(argc, argv); });
}

}  // namespace mixroof::cli
