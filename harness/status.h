// Outcomes that a user sees: the closed list of statuses, errors with a remedy, and near names for misspelt ones.
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace mixroof {

/// Status of a case. The list is closed: the result schema and every table use these words.
enum class Status {
  ok,
  not_built,
  no_device,
  not_supported,
  invalid_problem,
  out_of_memory,
  skipped,
  incorrect,
  untrusted,
  not_converged,
  timed_out,
  interrupted,
  failed,
};

std::string_view name(Status status);

/// Exit codes of every program of this project.
enum ExitCode : int {
  kExitOk = 0,
  kExitFinding = 1,      // regression, failed check, a case incorrect or failed, invalid file under `validate`
  kExitUsage = 2,        // wrong usage or input
  kExitImpossible = 3,   // the machine cannot do it
  kExitInterrupted = 130,
};

/// Ends an operation. `what()` is one line: which thing, which value, which remedy.
class Error : public std::runtime_error {
 public:
  Error(Status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  Status status() const { return status_; }

 private:
  Status status_;
};

/// Wrong usage or input: exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Whether something can be done; a "no" carries what to do about it.
struct Support {
  bool yes = true;
  std::string reason;

  static Support no(std::string reason) { return {false, std::move(reason)}; }
  explicit operator bool() const { return yes; }
};

/// The valid names nearest to `wanted` (edit distance), best first, at most `most`.
std::vector<std::string> nearest_names(std::string_view wanted, std::span<const std::string> valid, std::size_t most = 3);

/// "unknown recipe 'bf15'; did you mean bf16-pure, bf16-master? (mixroof list recipes)"
[[noreturn]] void throw_unknown(std::string_view kind, std::string_view wanted, std::span<const std::string> valid,
                                std::string_view list_command);

}  // namespace mixroof
