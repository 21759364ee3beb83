#include "harness/cli/output.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "harness/status.h"

namespace mixroof::cli {
namespace {

std::string_view name(OutputFormat format) {
  switch (format) {
    case OutputFormat::text:
      return "text";
    case OutputFormat::markdown:
      return "markdown";
    case OutputFormat::json:
      return "json";
    case OutputFormat::csv:
      return "csv";
  }
  return "text";
}

}  // namespace

void add_format_option(CLI::App& app, OutputFormat& format, std::initializer_list<OutputFormat> valid) {
  const std::vector<OutputFormat> formats = valid;
  std::vector<std::string> names;
  for (const OutputFormat f : formats) names.emplace_back(name(f));
  std::string joined;
  for (const std::string& n : names) joined += (joined.empty() ? "" : "|") + n;
  const std::string command = fmt::format("mixroof {} --help", app.get_name());
  const auto set = [&format, formats, names, command](const std::string& wanted) {
    for (const OutputFormat f : formats)
      if (name(f) == wanted) {
        format = f;
        return;
      }
    throw_unknown("format", wanted, names, command);
  };
  app.add_option_function<std::string>("--format", set, "How the result is printed")
      ->option_text(joined + fmt::format(" [{}]", name(format)));
}

void print(std::string_view text) {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (written) return;
  if (errno == EPIPE) throw OutputClosed();
  throw Error(Status::failed, fmt::format("stdout cannot be written: {}", std::strerror(errno)));
}

void print(const Table& table, OutputFormat format) {
  print(format == OutputFormat::markdown ? table.markdown() : table.text(output_width()));
}

}  // namespace mixroof::cli
