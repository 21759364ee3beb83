// A process of our own: text in, text out. Its stderr stays ours.
#pragma once

#include <string>
#include <vector>

namespace mixroof::cli {

struct ChildResult {
  int exit_code = 0;   // 128 + signal when a signal ended it
  std::string output;  // its stdout
};

/// Path of this executable.
std::string own_executable();
/// Runs `command` to its end; the first word is a path. Throws Error(failed) when it cannot be started.
ChildResult run_child(const std::vector<std::string>& command, const std::string& input);

}  // namespace mixroof::cli
