// The table of `mixroof check --oracle`.
#pragma once

#include "harness/cli/output.h"
#include "harness/oracle/check.h"

namespace mixroof::cli {

/// Prints a row for everything that the folder has, progress on stderr meanwhile. Returns an exit code: 1 on any
/// failure.
int print_oracle_check(const OracleOptions& options, OutputFormat format);

}  // namespace mixroof::cli
