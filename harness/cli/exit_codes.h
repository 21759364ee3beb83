// How every program ends: exceptions become exit codes and one line on stderr.
#pragma once

#include <functional>
#include <string_view>

namespace mixroof::cli {

/// Runs `body` and returns its exit code, or that of what it threw (harness/status.h). All that a user then sees is one
/// line on stderr that starts with "<program>: ".
int exit_code_of(std::string_view program, const std::function<int()>& body);

}  // namespace mixroof::cli
