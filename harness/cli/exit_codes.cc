#include "harness/cli/exit_codes.h"

#include <fmt/format.h>

#include <cstdio>
#include <new>
#include <stdexcept>
#include <string>

#include "harness/cli/output.h"
#include "harness/status.h"

namespace mixroof::cli {
namespace {

int exit_code(Status status) {
  switch (status) {
    case Status::not_built:
    case Status::no_device:
    case Status::not_supported:
    case Status::out_of_memory:
      return kExitImpossible;
    case Status::interrupted:
      return kExitInterrupted;
    default:
      return kExitFinding;
  }
}

constexpr const char* kNoMemory = "out_of_memory: the system gives no more memory; choose a smaller shape";

std::string on_one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  return text;
}

int complain(std::string_view program, const std::string& message, int code) {
  const std::string line = fmt::format("{}: {}\n", program, on_one_line(message));
  std::fwrite(line.data(), 1, line.size(), stderr);
  return code;
}

}  // namespace

int exit_code_of(std::string_view program, const std::function<int()>& body) {
  try {
    return body();
  } catch (const OutputClosed&) {
    return kExitInterrupted;
  } catch (const UsageError& error) {
    return complain(program, error.what(), kExitUsage);
  } catch (const Error& error) {
    return complain(program, fmt::format("{}: {}", name(error.status()), error.what()), exit_code(error.status()));
  } catch (const std::bad_alloc&) {
    return complain(program, kNoMemory, kExitImpossible);
  } catch (const std::length_error&) {  // a vector of more elements than addresses
    return complain(program, kNoMemory, kExitImpossible);
  } catch (const std::exception& error) {
    return complain(program, fmt::format("{} (this is a defect of mixroof)", error.what()), kExitFinding);
  }
}

}  // namespace mixroof::cli
