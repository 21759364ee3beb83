// What each format can represent and what it makes of values near its limits (cases.md NUM-1, NUM-2).
#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "harness/cli/explain/topic.h"
#include "harness/numeric/codec.h"

namespace mixroof::cli {
namespace {

constexpr std::array kShown = {Format::fp32, Format::tf32,     Format::fp16,
                               Format::bf16, Format::fp8_e4m3, Format::fp8_e5m2};

/// `value` after encoding and decoding, by the array codecs that training uses.
float through(Format format, float value) {
  std::array<unsigned char, sizeof(double)> code = {};
  float back = 0;
  encode(format, &value, code.data(), 1);
  decode(format, code.data(), &back, 1);
  return back;
}

Table limits_table() {
  Table table({{"format"},
               {"bytes", Align::right},
               {"mantissa bits", Align::right, 3},
               {"largest", Align::right},
               {"smallest normal", Align::right, 2},
               {"smallest subnormal", Align::right, 1},
               {"spacing at 1", Align::right},
               {"infinity", Align::left, 4}});
  for (const Format format : kShown) {
    const FormatFacts& f = facts(format);
    table.add_row({std::string(f.name), fmt::format("{}", f.bytes), fmt::format("{}", f.mantissa_bits),
                   number(f.max_finite), small_number(f.min_normal), small_number(f.min_subnormal),
                   small_number(f.epsilon), f.has_infinity ? "yes" : "no"});
  }
  return table;
}

struct Example {
  const char* text;
  float value;
};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::array kValues = std::to_array<Example>({{"1/3", 1.0f / 3},
                                                       {"1 + 2^-11", 1.00048828125f},
                                                       {"1 - 1e-6", 0.999999f},
                                                       {"0.999", 0.999f},
                                                       {"447", 447},
                                                       {"448", 448},
                                                       {"449", 449},
                                                       {"464", 464},
                                                       {"465", 465},
                                                       {"480", 480},
                                                       {"1000", 1000},
                                                       {"-1000", -1000},
                                                       {"65504", 65504},
                                                       {"65520", 65520},
                                                       {"1e38", 1e38f},
                                                       {"2^-9", 0x1p-9f},
                                                       {"1.5 * 2^-9", 0x1.8p-9f},
                                                       {"2^-10", 0x1p-10f},
                                                       {"2^-10 * 1.0001", 0x1p-10f * 1.0001f},
                                                       {"1e-8", 1e-8f},
                                                       {"1e-40", 1e-40f},
                                                       {"infinity", kInfinity},
                                                       {"NaN", kNan}});

/// A narrow terminal shows the formats that lose most.
int drop_order(Format format) {
  switch (format) {
    case Format::tf32:
      return 3;
    case Format::fp32:
      return 2;
    case Format::fp8_e5m2:
      return 1;
    default:
      return 0;
  }
}

Table values_table() {
  std::vector<Column> columns = {{"value"}};
  for (const Format format : kShown)
    columns.push_back({std::string(name(format)), Align::right, drop_order(format)});
  Table table(columns);
  for (const Example& example : kValues) {
    std::vector<std::string> cells = {example.text};
    for (const Format format : kShown) cells.push_back(small_number(through(format, example.value)));
    table.add_row(cells);
  }
  return table;
}

/// What the 256 bytes of fp8_e4m3 decode to.
Table decoding_table() {
  std::string nans;
  float largest = 0, smallest = kInfinity;
  for (int code = 0; code < 256; ++code) {
    const float value = decode_fp8_e4m3(static_cast<std::uint8_t>(code));
    if (std::isnan(value)) nans += fmt::format("{}0x{:02X}", nans.empty() ? "" : ", ", code);
    if (value > largest) largest = value;
    if (value > 0 && value < smallest) smallest = value;
  }
  Table table({{"bytes"}, {"decoded", Align::right}});
  table.add_row({nans, "nan"});
  table.add_row({"largest", number(largest)});
  table.add_row({"smallest positive", small_number(smallest)});
  return table;
}

Table bf16_table() {
  constexpr std::array<std::uint32_t, 6> kPatterns = {0x3E89CCD5, 0x7F7FFFFF, 0x7F800001,
                                                      0x7FFF8C22, 0xFFFFFFFF, 0x7F800000};
  Table table({{"fp32 bits"},
               {"value", Align::right, 1},
               {"bf16 bits"},
               {"bf16", Align::right},
               {"if low bits were cut", Align::right}});
  for (const std::uint32_t pattern : kPatterns) {
    const auto value = std::bit_cast<float>(pattern);
    const std::uint16_t code = encode_bf16(value);
    table.add_row({fmt::format("0x{:08X}", pattern), number(value), fmt::format("0x{:04X}", code),
                   number(decode_bf16(code)), number(decode_bf16(static_cast<std::uint16_t>(pattern >> 16)))});
  }
  return table;
}

Page page() {
  return {.summary = "A number format is a range and a spacing; training loses what falls outside the one or between the "
                     "other.",
          .sections = {{.title = "What each format can represent", .text = "", .table = limits_table()},
                       {.title = "What each format makes of a value",
                        .text = "Encoded and decoded now, by the codecs that training uses.",
                        .table = values_table(),
                        .note = "464 is the midpoint of 448 and the unused 480; the tie goes to the even code, 448."},
                       {.title = "The 256 bytes of fp8_e4m3", .text = "", .table = decoding_table()},
                       {.title = "FP32 to BF16, bit by bit",
                        .text = "Rounded to nearest; cutting the low bits loses up to a whole spacing.",
                        .table = bf16_table()}},
          .rule = "round to nearest, ties to even, once. NaN stays NaN for every payload. fp16 and bf16 overflow to "
                  "infinity; fp8 saturates: whatever is larger, infinities included, becomes the largest finite value "
                  "and is counted. fp16 loses small gradients (its smallest is 2^-24) and needs loss scaling; bf16 keeps "
                  "the range of fp32 and loses digits: its spacing below 1 is 2^-8, so that 0.999 and 1 - 1e-6 both "
                  "become 1."};
}

}  // namespace

Topic formats_topic() {
  return {.name = "formats", .summary = "what each format can represent and what it rounds to", .page = page};
}

}  // namespace mixroof::cli
