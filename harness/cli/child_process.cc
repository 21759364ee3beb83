#include "harness/cli/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "harness/status.h"

extern char** environ;

namespace mixroof::cli {
namespace {

struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw Error(Status::failed, fmt::format("pipe: {}", std::strerror(errno)));
    read_end = ends[0];
    write_end = ends[1];
  }
  ~Pipe() {
    close_end(read_end);
    close_end(write_end);
  }
  static void close_end(int& end) {
    if (end >= 0) close(end);
    end = -1;
  }
};

void write_all(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = write(fd, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;  // the child has ended: its exit code tells why
    done += static_cast<std::size_t>(written);
  }
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 65536> buffer;
  for (;;) {
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace

std::string own_executable() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

ChildResult run_child(const std::vector<std::string>& command, const std::string& input) {
  Pipe to_child, from_child;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to_child.read_end, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from_child.write_end, STDOUT_FILENO);
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, command.front().c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw Error(Status::failed, fmt::format("{}: {}", command.front(), std::strerror(error)));
  Pipe::close_end(to_child.read_end);
  Pipe::close_end(from_child.write_end);
  // The child reads all of its input before it writes.
  write_all(to_child.write_end, input);
  Pipe::close_end(to_child.write_end);
  ChildResult result{.output = read_all(from_child.read_end)};
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace mixroof::cli
