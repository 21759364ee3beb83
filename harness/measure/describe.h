// What every result document says about the run that made it, whichever program that was: the sections run, tool, host
// and environment at its start, the exit code at its end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/backend/facts.h"
#include "harness/result/document.h"

namespace mixroof {

/// Sets run, tool, host and environment. `label` starts the run's id: the model, or what else was measured.
void describe_run(Document& document, std::string_view label, const std::vector<std::string>& command,
                  std::uint64_t seed, const DeviceFacts& device);

/// A case that is incorrect or failed is a finding; a run in which nothing could run is 3.
int document_exit_code(const Json& document, RunStatus status);

/// Seconds since 1970.
std::int64_t unix_seconds();

}  // namespace mixroof
