// What made this program, for the document's `tool` section.
#pragma once

#include <string>
#include <vector>

#include "harness/result/document.h"

namespace mixroof {

/// version, commit, compiler, flags, libraries; tuning is added by the run.
Json tool_json();
/// The words this process was started with.
std::vector<std::string> command_line();

}  // namespace mixroof
