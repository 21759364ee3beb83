// What each format can represent and what it makes of values near its limits (cases.md NUM-1, NUM-2).
#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "harness/cli/explain.h"
#include "harness/cli/table.h"
#include "harness/numeric/codec.h"

namespace mixroof::cli {
namespace {

constexpr std::array kShown = {Format::fp32, Format::tf32,     Format::fp16,
                               Format::bf16, Format::fp8_e4m3, Format::fp8_e5m2};

/// NaN without the sign that a payload may carry.
std::string number(double value) { return std::isnan(value) ? "nan" : fmt::format("{:.9g}", value); }

/// 2^-10 rather than 0.0009765625 where the value is a power of two below 1.
std::string small_number(double value) {
  int exponent = 0;
  const bool is_power_of_two = value > 0 && value < 1 && std::frexp(value, &exponent) == 0.5;
  return is_power_of_two ? fmt::format("2^{}", exponent - 1) : number(value);
}

/// `value` after encoding and decoding, by the array codecs that training uses.
float through(Format format, float value) {
  std::array<unsigned char, sizeof(double)> code = {};
  float back = 0;
  encode(format, &value, code.data(), 1);
  decode(format, code.data(), &back, 1);
  return back;
}

std::string limits_table(int width) {
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
  return table.text(width);
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

std::string values_table(int width) {
  std::vector<Column> columns = {{"value"}};
  for (const Format format : kShown) columns.push_back({std::string(name(format)), Align::right});
  Table table(columns);
  for (const Example& example : kValues) {
    std::vector<std::string> cells = {example.text};
    for (const Format format : kShown) cells.push_back(small_number(through(format, example.value)));
    table.add_row(cells);
  }
  return table.text(width);
}

std::string decoding_text() {
  int nans = 0;
  float largest = 0, smallest = kInfinity;
  for (int code = 0; code < 256; ++code) {
    const float value = decode_fp8_e4m3(static_cast<std::uint8_t>(code));
    if (std::isnan(value)) ++nans;
    if (value > largest) largest = value;
    if (value > 0 && value < smallest) smallest = value;
  }
  return fmt::format(
      "The 256 bytes of fp8_e4m3: {} are NaN (0x7F gives {}, 0xFF gives {}), the largest value is {}, the smallest "
      "positive "
      "one {}.\n",
      nans, number(decode_fp8_e4m3(0x7F)), number(decode_fp8_e4m3(0xFF)), number(largest), small_number(smallest));
}

std::string bf16_table(int width) {
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
  return table.text(width);
}

}  // namespace

std::string explain_formats(int width) {
  return "What each format can represent\n\n" + limits_table(width) +
         "\nWhat each format makes of a value (computed now, by the codecs that training uses)\n\n" +
         values_table(width) +
         "\n464 is the midpoint of 448 and the unused 480; the tie goes to the even code, 448.\n" + decoding_text() +
         "\nFP32 to BF16, bit by bit\n\n" + bf16_table(width) +
         "\nRule: round to nearest, ties to even, once. NaN stays NaN for every payload. fp16 and bf16 overflow to "
         "infinity;\n"
         "fp8 saturates: whatever is larger, infinities included, becomes the largest finite value and is counted.\n"
         "fp16 loses small gradients (smallest 2^-24) and needs loss scaling; bf16 keeps the range of fp32 and loses "
         "digits:\n"
         "its spacing below 1 is 2^-8, so that 0.999 and 1 - 1e-6 both become 1.\n";
}

}  // namespace mixroof::cli
