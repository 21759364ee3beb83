#include "harness/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "harness/status.h"

namespace mixroof {
namespace {

constexpr std::string_view kTemporaryStem = ".mixroof-", kTemporaryEnding = ".tmp";

int next_number() {
  static std::atomic<int> number{0};
  return number++;
}

std::filesystem::path temporary_name() {
  return fmt::format("{}{}-{}{}", kTemporaryStem, ::getpid(), next_number(), kTemporaryEnding);
}

/// The process that made a temporary file; 0: not a name of ours.
pid_t maker_of(std::string_view name) {
  if (!name.starts_with(kTemporaryStem) || !name.ends_with(kTemporaryEnding)) return 0;
  name.remove_prefix(kTemporaryStem.size());
  pid_t maker = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), maker);
  return error == std::errc() && maker > 0 && end != name.data() + name.size() && *end == '-' ? maker : 0;
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

bool FileDescriptor::close() { return ::close(std::exchange(fd_, -1)) == 0; }

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

AtomicFile::AtomicFile(std::filesystem::path destination)
    : destination_(std::move(destination)), fd_(create()), is_ours_(fd_.is_open()) {}

int AtomicFile::create() {
  // A killed process of the same id may have left the name: ids repeat, in containers at every start.
  for (;;) {
    path_ = directory_of(destination_) / temporary_name();
    const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
}

AtomicFile::~AtomicFile() {
  if (is_ours_) ::unlink(path_.c_str());
}

void AtomicFile::fail() const {
  throw Error(Status::failed, fmt::format("cannot write {}: {}", destination_.string(), std::strerror(errno)));
}

void AtomicFile::write(std::string_view bytes) {
  if (!fd_.is_open() || !write_all(fd_.get(), bytes)) fail();
}

void AtomicFile::commit(std::optional<mode_t> mode) {
  if (!fd_.is_open()) fail();
  if (mode && ::fchmod(fd_.get(), *mode) != 0) fail();
  if (::fsync(fd_.get()) != 0 || !fd_.close()) fail();
  if (::rename(path_.c_str(), destination_.c_str()) != 0) fail();
  is_ours_ = false;
  // The rename itself is durable only once the directory is; some file systems cannot, and then there is no more to do.
  const FileDescriptor folder(::open(directory_of(destination_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.is_open() && ::fsync(folder.get()) != 0 && errno == EIO) fail();
}

void remove_abandoned(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const pid_t maker = maker_of(entry.path().filename().string());
    const bool is_gone = maker == ::getpid() || (maker > 0 && ::kill(maker, 0) != 0 && errno == ESRCH);
    if (is_gone) std::filesystem::remove(entry.path(), ignored);
  }
}

}  // namespace mixroof
