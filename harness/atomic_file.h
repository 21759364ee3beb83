// A file that appears whole or not at all: written beside its destination, flushed to the disk and renamed over it.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace mixroof {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor();
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  /// Network file systems report a full disk only here.
  bool close();

 private:
  int fd_;
};

/// Writes all of it; false with errno when the system refuses.
bool write_all(int fd, std::string_view bytes);

/// The directory of a path, "." for a bare name.
std::filesystem::path directory_of(const std::filesystem::path& path);

/// A file beside its destination that disappears unless it is committed.
class AtomicFile {
 public:
  /// In the destination's directory, under a name of its own that does not grow with the destination's.
  explicit AtomicFile(std::filesystem::path destination);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  bool is_open() const { return fd_.is_open(); }
  /// Throws Error(failed) with the destination and the system's reason, as commit does.
  void write(std::string_view bytes);
  /// Flushes and renames: afterwards the destination holds this file, also after a loss of power. `mode`: permissions.
  void commit(std::optional<mode_t> mode = std::nullopt);

 private:
  int create();
  [[noreturn]] void fail() const;

  std::filesystem::path destination_, path_;
  FileDescriptor fd_;
  bool is_ours_;
};

/// Removes what killed processes left in `folder`: temporary files whose process is gone or has this one's id. For a
/// folder that one process writes at a time, before this process writes there.
void remove_abandoned(const std::filesystem::path& folder);

}  // namespace mixroof
