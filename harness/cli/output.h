// What a subcommand prints: its result on stdout, in the format that was asked for.
#pragma once

#include <CLI/CLI.hpp>
#include <exception>
#include <initializer_list>
#include <string>
#include <string_view>

#include "harness/cli/table.h"

namespace mixroof::cli {

enum class OutputFormat { text, markdown, json, csv };

/// Declares --format; `valid` lists what the subcommand can print. Another word is a UsageError with near names.
void add_format_option(CLI::App& app, OutputFormat& format, std::initializer_list<OutputFormat> valid);

/// The reader of stdout went away (EPIPE): work stops quietly, exit code 130.
struct OutputClosed : std::exception {
  const char* what() const noexcept override { return "stdout was closed"; }
};

/// Writes and flushes. Throws OutputClosed, or Error(failed) with the system's reason (a full disk, a closed
/// descriptor).
void print(std::string_view text);
/// As text for the terminal's width, or as markdown.
void print(const Table& table, OutputFormat format);

}  // namespace mixroof::cli
