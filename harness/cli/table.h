// Tables for people: aligned text that fits a terminal, or markdown. Cells are UTF-8; control characters become spaces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mixroof::cli {

enum class Align { left, right };

struct Column {
  std::string header;
  /// Right-aligned cells are numbers: they are never folded or cut.
  Align align = Align::left;
  /// In a narrow terminal columns are left out from the highest number down; those with 0 stay.
  int drop_order = 0;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// Missing cells are empty. Throws std::logic_error when there are more cells than columns.
  void add_row(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }

  /// Lines of at most `width` terminal cells (0: as wide as needed): first text columns are folded at spaces, then
  /// columns are left out and named below. Wider only when numbers of columns that must stay need it.
  std::string text(int width = 0) const;
  std::string markdown() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// `text` in lines of at most `width` cells, broken at spaces, or inside words that are longer.
std::vector<std::string> fold(const std::string& text, int width);
/// Cells that UTF-8 text takes in a terminal: none for combining marks, two for wide East Asian characters and emoji.
int display_width(std::string_view text);
/// Width for tables on stdout: COLUMNS when set, the terminal's, or 0 when stdout is no terminal.
int output_width();

}  // namespace mixroof::cli
