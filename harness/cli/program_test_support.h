// Starts a program of the build as a user does; for tests.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "harness/result/document.h"

namespace mixroof {

struct ProgramResult {
  int exit_code = -1;
  std::string out, err;

  Json json() const { return Json::parse(out); }
};

/// `command` as a shell reads it, redirections included.
inline ProgramResult run_program(const std::string& command) {
  const std::filesystem::path err =
      std::filesystem::temp_directory_path() / ("mixroof_test_err_" + std::to_string(getpid()));
  ProgramResult result;
  FILE* pipe = popen(("( " + command + " ) 2>" + err.string()).c_str(), "r");
  char buffer[4096];
  for (std::size_t got = 0; (got = fread(buffer, 1, sizeof buffer, pipe)) > 0;) result.out.append(buffer, got);
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  std::stringstream text;
  text << std::ifstream(err).rdbuf();
  result.err = text.str();
  std::filesystem::remove(err);
  return result;
}

}  // namespace mixroof
