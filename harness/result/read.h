// Documents from disk: strict JSON, errors with file, line and column, and the rules for other versions.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "harness/result/document.h"

namespace mixroof {

/// Strict JSON (RFC 8259) with an optional byte order mark; bare NaN and Infinity, numbers beyond a double, trailing
/// text and bytes that are not UTF-8 are refused. `file` is for messages. Throws UsageError("FILE: line L, column C:
/// …"); columns count bytes.
Json parse_json(std::string_view text, std::string_view file);

/// The whole file. Throws UsageError with the system's reason.
std::string read_file(const std::filesystem::path& path);

/// Refuses what is no mixroof result or of a newer major version; any minor version of this major is read and keys that
/// are not known are ignored. Throws UsageError naming the file and both versions.
void check_schema_version(const Json& document, std::string_view file);

/// read_file, parse_json and check_schema_version. Does not validate: see validate.h.
Json read_document(const std::filesystem::path& path);

/// `text` with every byte that is not part of UTF-8 replaced by U+FFFD: for importing files of careless writers.
std::string sanitize_utf8(std::string_view text);

}  // namespace mixroof
