// A subcommand of `mixroof`. To add one: a file <name>.cc that defines `Subcommand <name>_subcommand()`, and its name
// in the list of CMakeLists.txt, from which subcommands.cc is generated; help, near names and tests follow from the
// list.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <span>
#include <string>

namespace mixroof::cli {

/// What runs once the command line is parsed. Returns an exit code of harness/status.h. Wrong input is thrown as
/// UsageError, what ends the operation as Error or another exception: main maps them to exit codes.
using Action = std::function<int()>;

struct Subcommand {
  std::string name;
  std::string summary;   // one line of `mixroof --help`
  std::string examples;  // lines of `mixroof NAME --help`, each a command
  /// Declares options on `app`. Values live in what the returned action owns (a shared_ptr bound to the options).
  Action (*declare)(CLI::App& app);
};

/// Every subcommand of the build, in the order of help.
std::span<const Subcommand> all_subcommands();

/// Parses and runs. Everything a user sees of an error is one line on stderr that starts with "mixroof: ".
int run_command_line(int argc, const char* const* argv);

}  // namespace mixroof::cli
