// Documents onto disk: strict JSON (RFC 8259) whatever the locale, and never half a file. A new kind of destination is
// one branch in write.cc.
#pragma once

#include <filesystem>
#include <string>

#include "harness/result/document.h"

namespace mixroof {

/// The text of a document. Containers of plain values stand on one line, so that a diff shows rows. Bytes that are not
/// UTF-8 become U+FFFD, control characters are escaped. A number that is not finite becomes null, and its object gets
/// "<key>_reason" (for an array: the reason stands beside the array's key). Ends with a newline.
std::string document_text(const Json& document);

/// Whether a document can be written to `path`, to be called before anything is measured. Leaves nothing behind.
/// Throws UsageError with the system's reason: a missing or read-only directory, a directory instead of a file, a file
/// without write permission, a name that is too long.
void test_writable(const std::filesystem::path& path);

/// Writes a temporary file in the same directory, flushes it to the disk and renames it over `path`: a reader sees the
/// old document or the new one, and the old one stays when anything fails. Keeps the mode of a file that is replaced
/// and follows symbolic links. Devices and pipes are written directly. Throws Error(failed) with the system's reason.
void write_document(const std::filesystem::path& path, const Json& document);

/// The same for a run that goes on; does nothing for devices and pipes, which take the final document only.
void checkpoint_document(const std::filesystem::path& path, const Json& document);

}  // namespace mixroof
