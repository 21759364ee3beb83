#include "harness/cli/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "harness/cli/quantity.h"
#include "harness/cli/table.h"

namespace mixroof::cli {
namespace {

constexpr auto kLeastBetweenDraws = std::chrono::milliseconds(100);

int terminal_width() {
  winsize size{};
  constexpr int kUsual = 80;
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

/// Cut at a character so that the line does not wrap, since only one line can be taken away again.
std::string cut(std::string text, int width) {
  const auto ends_inside_character = [&] { return (static_cast<unsigned char>(text.back()) & 0xC0) == 0x80; };
  while (display_width(text) > width) {
    while (ends_inside_character()) text.pop_back();
    text.pop_back();
  }
  return text;
}

std::string left_text(double seconds) {
  const auto whole = static_cast<long long>(seconds + 0.5);
  return whole < 120 ? fmt::format("{} s left", whole) : fmt::format("{} min left", (whole + 30) / 60);
}

void write_stderr(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

}  // namespace

Progress::Progress() {
  const char* term = std::getenv("TERM");
  is_terminal_ = isatty(STDERR_FILENO) != 0 && term != nullptr && std::string_view(term) != "dumb";
}

void Progress::show(const ProgressState& state) {
  const auto now = std::chrono::steady_clock::now();
  if (!is_terminal_ || (is_drawn_ && now - last_drawn_ < kLeastBetweenDraws)) return;
  write_stderr(fmt::format("\r\033[K{}", cut(progress_text(state), terminal_width() - 1)));
  is_drawn_ = true;
  last_drawn_ = now;
}

void Progress::finish_case(std::string_view line) {
  clear();
  write_stderr(fmt::format("{}\n", line));
}

void Progress::clear() {
  if (is_drawn_) write_stderr("\r\033[K");
  is_drawn_ = false;
}

std::string progress_text(const ProgressState& state) {
  std::string text;
  if (state.total > 0) text += fmt::format("[{}/{}] ", state.done, state.total);
  text += state.what;
  if (state.noise) text += fmt::format(", noise {}", percent_text(*state.noise));
  if (state.time_left_s) text += fmt::format(", {}", left_text(*state.time_left_s));
  return text;
}

}  // namespace mixroof::cli
