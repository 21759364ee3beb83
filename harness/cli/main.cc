#include <fcntl.h>
#include <unistd.h>

#include <csignal>

#include "harness/cli/subcommand.h"

namespace {

/// A descriptor that the caller closed would be given to the first file that is opened. Opened the wrong way round,
/// every use of it still fails.
void occupy_closed_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(fd, F_GETFD) == -1) (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

}  // namespace

int main(int argc, char** argv) {
  occupy_closed_descriptors();
  // A reader that goes away is an error of write(), so that open files can still be finished.
  std::signal(SIGPIPE, SIG_IGN);
  return mixroof::cli::run_command_line(argc, argv);
}
