#include "harness/result/read.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

namespace mixroof {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kSchemaPrefix = "mixroof/result/";

/// Accepts everything and keeps where parsing stopped: exceptions of the library carry no position for numbers that are
/// too large.
class ErrorLocator : public nlohmann::json_sax<Json> {
 public:
  std::size_t position = 0;  // bytes read when it failed
  std::string what;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception& error) override {
    position = at;
    what = error.what();
    return false;
  }
};

/// The library's message without its own name, number and position, in one line of bounded length.
std::string plain_message(std::string message) {
  if (const auto bracket = message.find("] "); message.starts_with('[') && bracket != std::string::npos)
    message.erase(0, bracket + 2);
  if (message.starts_with("parse error at"))
    if (const auto colon = message.find(": "); colon != std::string::npos) message.erase(0, colon + 2);
  constexpr std::size_t kMost = 200;  // the message quotes what was read, which may be a long string
  if (message.size() > kMost) message = message.substr(0, kMost) + "…";
  std::replace_if(
      message.begin(), message.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return sanitize_utf8(message);
}

struct Version {
  int major = 0, minor = 0;
};

std::optional<Version> parse_version(std::string_view schema) {
  if (!schema.starts_with(kSchemaPrefix)) return std::nullopt;
  schema.remove_prefix(kSchemaPrefix.size());
  Version version;
  const char* end = schema.data() + schema.size();
  const auto major = std::from_chars(schema.data(), end, version.major);
  if (major.ec != std::errc{} || major.ptr == end || *major.ptr != '.') return std::nullopt;
  const auto minor = std::from_chars(major.ptr + 1, end, version.minor);
  if (minor.ec != std::errc{} || minor.ptr != end || version.major < 0 || version.minor < 0) return std::nullopt;
  return version;
}

/// Bytes of the well-formed UTF-8 sequence at the start of `text` (Unicode 15, table 3-7); 0 when there is none.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto continues = [&](std::size_t i, unsigned low = 0x80, unsigned high = 0xBF) {
    return byte(i) >= low && byte(i) <= high;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const unsigned low = lead == 0xE0 ? 0xA0 : 0x80, high = lead == 0xED ? 0x9F : 0xBF;
    return continues(1, low, high) && continues(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const unsigned low = lead == 0xF0 ? 0x90 : 0x80, high = lead == 0xF4 ? 0x8F : 0xBF;
    return continues(1, low, high) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

Json parse_json(std::string_view text, std::string_view file) {
  const std::string_view body = text.starts_with(kByteOrderMark) ? text.substr(kByteOrderMark.size()) : text;
  ErrorLocator locator;
  if (Json::sax_parse(body, &locator)) return Json::parse(body);
  if (body.find_first_not_of(" \t\r\n") == std::string_view::npos)
    throw UsageError(fmt::format("{}: the file is empty; expected a JSON document", file));
  // The parser has read the byte that it refuses; the end of the file is one further than the last byte.
  const std::string_view before = body.substr(0, std::min(body.size(), std::max<std::size_t>(locator.position, 1) - 1));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const auto line_start = before.rfind('\n');
  const auto column = before.size() - (line_start == std::string_view::npos ? 0 : line_start + 1) + 1;
  throw UsageError(fmt::format("{}: line {}, column {}: {}", file, line, column, plain_message(locator.what)));
}

std::string read_file(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) throw UsageError(fmt::format("{} is a directory; name a file", path.string()));
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UsageError(fmt::format("cannot read {}: {}", path.string(), std::strerror(errno)));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) throw UsageError(fmt::format("cannot read {}: {}", path.string(), std::strerror(errno)));
  return text;
}

void check_schema_version(const Json& document, std::string_view file) {
  const std::string expected = fmt::format("{}{}.x", kSchemaPrefix, kSchemaMajor);
  if (!document.is_object())
    throw UsageError(fmt::format("{}: expected a result document (an object with schema \"{}\")", file, expected));
  const auto schema = document.find("schema");
  if (schema == document.end())
    throw UsageError(fmt::format("{}: no key \"schema\", expected \"{}\"; mixroof import reads results of other tools",
                                 file, expected));
  const auto version = schema->is_string() ? parse_version(schema->get_ref<const std::string&>()) : std::nullopt;
  if (!version)
    throw UsageError(fmt::format("{}: schema is {}, expected \"{}\"", file,
                                 schema->dump(-1, ' ', false, Json::error_handler_t::replace), expected));
  if (version->major != kSchemaMajor)
    throw UsageError(fmt::format("{}: schema {}{}.{} is {} than {}, which this program reads; use a matching mixroof",
                                 file, kSchemaPrefix, version->major, version->minor,
                                 version->major > kSchemaMajor ? "newer" : "older", schema_name()));
}

Json read_document(const fs::path& path) {
  Json document = parse_json(read_file(path), path.string());
  check_schema_version(document, path.string());
  return document;
}

std::string sanitize_utf8(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    if (length == 0)
      clean += "\xEF\xBF\xBD";
    else
      clean += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return clean;
}

}  // namespace mixroof
