#include "harness/cli/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <stdexcept>

namespace mixroof::cli {
namespace {

constexpr int kGap = 2;                   // spaces between columns
constexpr int kNarrowestTextColumn = 18;  // folding stops here

/// Code point at `position`, which moves past it; bytes that are not UTF-8 count as one character each.
std::uint32_t next_code_point(std::string_view text, std::size_t& position) {
  const auto byte = static_cast<unsigned char>(text[position++]);
  if (byte < 0xC0) return byte;
  const int more = byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : 1;
  std::uint32_t code = byte & (0x3Fu >> more);
  for (int i = 0; i < more && position < text.size(); ++i) {
    const auto next = static_cast<unsigned char>(text[position]);
    if ((next & 0xC0) != 0x80) break;
    code = code << 6 | (next & 0x3Fu);
    ++position;
  }
  return code;
}

struct CodeRange {
  std::uint32_t first, last;
};
// Blocks of Unicode 15 (EastAsianWidth.txt, W and F; combining and zero-width characters), in whole blocks.
constexpr std::array kWide = std::to_array<CodeRange>({{0x1100, 0x115F},
                                                       {0x2E80, 0xA4CF},
                                                       {0xAC00, 0xD7A3},
                                                       {0xF900, 0xFAFF},
                                                       {0xFE30, 0xFE6F},
                                                       {0xFF00, 0xFF60},
                                                       {0xFFE0, 0xFFE6},
                                                       {0x1F300, 0x1FAFF},
                                                       {0x20000, 0x3FFFD}});
constexpr std::array kZero =
    std::to_array<CodeRange>({{0x300, 0x36F}, {0x200B, 0x200F}, {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}});

template <typename Ranges>
bool contains(const Ranges& ranges, std::uint32_t code) {
  return std::any_of(ranges.begin(), ranges.end(), [&](CodeRange r) { return code >= r.first && code <= r.last; });
}

int code_point_width(std::uint32_t code) { return contains(kZero, code) ? 0 : contains(kWide, code) ? 2 : 1; }

std::string without_control_characters(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  return text;
}

std::string padded(const std::string& text, int width, Align align) {
  const std::string space(static_cast<std::size_t>(std::max(0, width - display_width(text))), ' ');
  return align == Align::right ? space + text : text + space;
}

/// How a table is laid out: which columns, how wide.
struct Layout {
  std::vector<std::size_t> shown;
  std::vector<int> width;  // of every column
  std::vector<std::string> left_out;

  int total() const {
    int sum = shown.empty() ? 0 : kGap * (static_cast<int>(shown.size()) - 1);
    for (const std::size_t i : shown) sum += width[i];
    return sum;
  }
};

/// Takes from the widest text column until the line fits or nothing can be folded further.
void fold_columns(const std::vector<Column>& columns, int limit, Layout& layout) {
  while (layout.total() > limit) {
    int* widest = nullptr;
    for (const std::size_t i : layout.shown)
      if (columns[i].align == Align::left && layout.width[i] > kNarrowestTextColumn &&
          (!widest || layout.width[i] > *widest))
        widest = &layout.width[i];
    if (!widest) return;
    *widest = std::max(kNarrowestTextColumn, *widest - (layout.total() - limit));
  }
}

Layout lay_out(const std::vector<Column>& columns, std::vector<int> natural, int limit) {
  Layout layout{.shown = std::vector<std::size_t>(columns.size()), .width = natural, .left_out = {}};
  std::iota(layout.shown.begin(), layout.shown.end(), std::size_t{0});
  if (limit <= 0) return layout;
  for (;;) {
    layout.width = natural;
    fold_columns(columns, limit, layout);
    if (layout.total() <= limit) return layout;
    const auto least = std::max_element(layout.shown.begin(), layout.shown.end(), [&](std::size_t a, std::size_t b) {
      return columns[a].drop_order < columns[b].drop_order;
    });
    if (least == layout.shown.end() || columns[*least].drop_order == 0) return layout;
    layout.left_out.push_back(columns[*least].header);
    layout.shown.erase(least);
  }
}

std::string line_of(const std::vector<Column>& columns, const Layout& layout, const std::vector<std::string>& cells) {
  std::vector<std::vector<std::string>> folded(columns.size());
  std::size_t height = 1;
  for (const std::size_t i : layout.shown) {
    folded[i] = columns[i].align == Align::left ? fold(cells[i], layout.width[i]) : std::vector<std::string>{cells[i]};
    height = std::max(height, folded[i].size());
  }
  std::string text;
  for (std::size_t row = 0; row < height; ++row) {
    std::string line;
    for (const std::size_t i : layout.shown) {
      if (i != layout.shown.front()) line.append(kGap, ' ');
      line += padded(row < folded[i].size() ? folded[i][row] : "", layout.width[i], columns[i].align);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string markdown_line(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) {
    std::string escaped;
    for (const char c : cell) escaped += c == '|' ? std::string("\\|") : std::string(1, c);
    line += fmt::format(" {} |", escaped);
  }
  return line + '\n';
}

}  // namespace

int display_width(std::string_view text) {
  int width = 0;
  for (std::size_t position = 0; position < text.size();) width += code_point_width(next_code_point(text, position));
  return width;
}

std::vector<std::string> fold(const std::string& text, int width) {
  std::vector<std::string> lines(1);
  int used = 0;
  std::size_t position = 0;
  while (position < text.size()) {
    const std::size_t space = std::min(text.find(' ', position), text.size());
    const std::string word = text.substr(position, space - position);
    position = space + 1;
    const int needed = display_width(word);
    if (used > 0 && used + 1 + needed > width) lines.emplace_back(), used = 0;
    if (used > 0) lines.back() += ' ', ++used;
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t begin = at;
      const int cell = code_point_width(next_code_point(word, at));
      if (used > 0 && used + cell > width) lines.emplace_back(), used = 0;
      lines.back() += word.substr(begin, at - begin);
      used += cell;
    }
  }
  return lines;
}

int output_width() {
  if (const char* columns = std::getenv("COLUMNS")) {
    const std::string_view text(columns);
    int width = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), width);
    if (error == std::errc() && end == text.data() + text.size() && width > 0) return width;
  }
  winsize size{};
  return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void Table::add_row(std::vector<std::string> cells) {
  if (cells.size() > columns_.size())
    throw std::logic_error(fmt::format("a row of {} cells in a table of {} columns", cells.size(), columns_.size()));
  cells.resize(columns_.size());
  for (std::string& cell : cells) cell = without_control_characters(std::move(cell));
  rows_.push_back(std::move(cells));
}

std::string Table::text(int width) const {
  std::vector<std::string> headers;
  std::vector<int> natural;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    headers.push_back(columns_[i].header);
    int widest = display_width(columns_[i].header);
    for (const auto& row : rows_) widest = std::max(widest, display_width(row[i]));
    natural.push_back(widest);
  }
  const Layout layout = lay_out(columns_, natural, width);
  std::string text = line_of(columns_, layout, headers);
  for (const auto& row : rows_) text += line_of(columns_, layout, row);
  if (!layout.left_out.empty())
    for (const std::string& line : fold(
             fmt::format("left out in {} columns of terminal: {}", width, fmt::join(layout.left_out, ", ")), width))
      text += line + "\n";
  return text;
}

std::string Table::markdown() const {
  std::vector<std::string> headers, rules;
  for (const Column& column : columns_) {
    headers.push_back(column.header);
    rules.emplace_back(column.align == Align::right ? "---:" : "---");
  }
  std::string text = markdown_line(headers) + markdown_line(rules);
  for (const auto& row : rows_) text += markdown_line(row);
  return text;
}

}  // namespace mixroof::cli
