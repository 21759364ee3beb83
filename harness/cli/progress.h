// Progress of long work on stderr: one line that is redrawn when stderr is a terminal, one line per finished case when
// it is not. Nothing of it goes to stdout.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace mixroof::cli {

struct ProgressState {
  std::string what;                  // what is running: "matmul/forward fp32"
  std::size_t done = 0, total = 0;   // cases; total 0: not known
  std::optional<double> noise = {};  // relative half width of the interval reached so far
  std::optional<double> time_left_s = {};
};

class Progress {
 public:
  Progress();
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Redraws the line, at most ten times a second. Does nothing when stderr is no terminal.
  void show(const ProgressState& state);
  /// A case has ended: one line that stays.
  void finish_case(std::string_view line);
  /// Takes the line away: before anything is printed to the same terminal.
  void clear();

 private:
  bool is_terminal_ = false;
  bool is_drawn_ = false;
  std::chrono::steady_clock::time_point last_drawn_ = {};
};

/// "[12/40] matmul/forward fp32, noise 1.2 %, 35 s left".
std::string progress_text(const ProgressState& state);

}  // namespace mixroof::cli
