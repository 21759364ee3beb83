#include "harness/result/write.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "harness/atomic_file.h"

namespace mixroof {
namespace {

namespace fs = std::filesystem;

// ---- text

constexpr const char* kNotFinite = "not a finite number";

bool is_nonfinite(const Json& value) { return value.is_number_float() && !std::isfinite(value.get<double>()); }

/// Nulls for numbers that are not finite; true when a direct element of this array was one.
bool make_finite(Json& value) {
  bool element_replaced = false;
  if (value.is_array()) {
    for (Json& element : value) {
      if (is_nonfinite(element)) {
        element = nullptr;
        element_replaced = true;
      } else {
        make_finite(element);
      }
    }
  }
  if (value.is_object()) {
    std::vector<std::string> replaced;
    for (auto& [key, member] : value.items()) {
      if (is_nonfinite(member)) {
        member = nullptr;
        replaced.push_back(key);
      } else if (make_finite(member)) {
        replaced.push_back(key);
      }
    }
    for (const std::string& key : replaced)
      if (!value.contains(key + "_reason")) value[key + "_reason"] = kNotFinite;
  }
  return element_replaced;
}

bool is_flat(const Json& container) {
  for (const Json& element : container)
    if (element.is_structured() && !element.empty()) return false;
  return true;
}

/// dump() is independent of C and C++ locales and prints the shortest decimal that reads back as the same double.
std::string plain_text(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

void append_text(const Json& value, int depth, std::string& text) {
  if (!value.is_structured() || is_flat(value)) {
    text += plain_text(value);
    return;
  }
  const std::string indent(static_cast<std::size_t>(depth) + 1, ' ');
  text += value.is_object() ? "{\n" : "[\n";
  bool first = true;
  for (const auto& [key, element] : value.items()) {
    if (!std::exchange(first, false)) text += ",\n";
    text += indent;
    if (value.is_object()) text += plain_text(Json(key)) + ": ";
    append_text(element, depth + 1, text);
  }
  text += '\n' + std::string(static_cast<std::size_t>(depth), ' ') + (value.is_object() ? '}' : ']');
}

// ---- files

std::string system_reason(int error) { return std::strerror(error); }

[[noreturn]] void fail(const fs::path& path, int error) {
  throw Error(Status::failed, fmt::format("cannot write {}: {}", path.string(), system_reason(error)));
}

std::optional<struct stat> status_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return status;
}

bool is_stream(const std::optional<struct stat>& status) { return status && !S_ISREG(status->st_mode); }

/// The file that a chain of symbolic links names, so that the link stays one.
fs::path resolve(const fs::path& path) {
  std::error_code error;
  const fs::path target = fs::canonical(path, error);
  return error ? path : target;
}

void write_stream(const fs::path& path, std::string_view text) {
  FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.is_open() || !write_all(fd.get(), text) || !fd.close()) fail(path, errno);
}

void replace_file(const fs::path& path, std::string_view text, std::optional<mode_t> mode) {
  AtomicFile file(path);
  file.write(text);
  file.commit(mode);
}

[[noreturn]] void refuse(const fs::path& path, std::string_view why) {
  throw UsageError(fmt::format("cannot write {}: {}", path.string(), why));
}

}  // namespace

std::string document_text(const Json& document) {
  Json finite = document;
  make_finite(finite);
  std::string text;
  append_text(finite, 0, text);
  return text + '\n';
}

void test_writable(const fs::path& path) {
  if (path.empty()) refuse("''", "the file name is empty");
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (!exists && errno != ENOENT) refuse(path, system_reason(errno) + "; choose another path");
  if (exists && S_ISDIR(status.st_mode)) refuse(path, "it is a directory; name a file in it");
  if (exists && ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0)
    refuse(path, system_reason(errno) + "; choose another path or change the file's permissions");
  if (exists && !S_ISREG(status.st_mode)) return;
  const fs::path directory = directory_of(resolve(path));
  if (!status_of(directory))
    refuse(path, fmt::format("no directory {}; create it (mkdir -p) or choose another path", directory.string()));
  if (!path.has_filename()) refuse(path, "it names a directory; name a file in it");
  const AtomicFile probe(directory / "probe");
  if (!probe.is_open())
    refuse(path, fmt::format("directory {}: {}; choose another path", directory.string(), system_reason(errno)));
}

void write_document(const fs::path& path, const Json& document) {
  const std::string text = document_text(document);
  const auto status = status_of(path);
  if (is_stream(status)) return write_stream(path, text);
  replace_file(resolve(path), text, status ? std::optional<mode_t>(status->st_mode & 07777) : std::nullopt);
}

void checkpoint_document(const fs::path& path, const Json& document) {
  if (!is_stream(status_of(path))) write_document(path, document);
}

}  // namespace mixroof
