// Group formats: limits, decoding and encoding, bit for bit, by the scalar codecs and by every array path of this
// processor. Single roundings and absorption are in rounding.cc.
#include "harness/oracle/formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "harness/numeric/codec.h"
#include "harness/numeric/conversions.h"
#include "harness/oracle/comparison.h"
#include "harness/oracle/exhaustive.h"

namespace mixroof {
namespace {

constexpr const char* kGroup = kFormatsGroup;
constexpr int kTopBytes = 256;

/// A path of the array codecs, until the end of its scope.
class CodecPath {
 public:
  explicit CodecPath(const std::string& path) { force_codec_path(path); }
  ~CodecPath() { force_codec_path({}); }
  CodecPath(const CodecPath&) = delete;
  CodecPath& operator=(const CodecPath&) = delete;
};

const ScalarEncoder* find_encoder(std::string_view name) {
  for (const ScalarEncoder& encoder : scalar_encoders())
    if (encoder.name == name) return &encoder;
  return nullptr;
}

// ---- limits

void check_facts(const OracleEntry& limits, const FormatFacts& f, Comparison& c) {
  const auto equal = [&](const char* key, double got) { c.equal(got, limits.number(key), key); };
  equal("mantissa_bits", f.mantissa_bits);
  equal("max_finite", f.max_finite);
  equal("min_normal", f.min_normal);
  equal("min_subnormal", f.min_subnormal);
  equal("epsilon", f.epsilon);
  equal("unit_roundoff", f.unit_roundoff);
  c.equal(f.has_infinity, limits.flag("has_infinity"), "has_infinity");
}

/// Where an encoder's codes begin and end; only for formats whose codes the folder numbers.
void check_edges(const OracleEntry& limits, const ScalarEncoder& encoder, Comparison& c) {
  if (!limits.has("max_finite_code")) return;
  const auto edge = [&](const char* key) { return static_cast<float>(limits.number(key)); };
  const auto equal = [&](float input, std::uint32_t expected, const char* what) {
    c.equal(encoder.encode(input), expected, fmt::format("{} of {} ({:.9g})", encoder.name, what, input));
  };
  const std::uint32_t largest = code_of(limits.number("max_finite_code"));
  const float over = edge("least_overflowing_fp32"), tie = edge("largest_rounding_to_zero");
  const bool saturates = is_fp8(encoder.format) && encoder.in_arrays;
  equal(edge("max_finite"), largest, "max_finite");
  equal(std::nextafter(over, 0.0f), largest, "the value before least_overflowing_fp32");
  equal(over, saturates ? largest : largest + 1, "least_overflowing_fp32");
  equal(tie, 0, "largest_rounding_to_zero");
  equal(std::nextafter(tie, 1.0f), 1, "the value after largest_rounding_to_zero");
  std::uint32_t nans = 0;
  for (std::uint32_t code = 0; code <= 2 * encoder.magnitude_mask + 1; ++code)
    nans += std::isnan(decode_one(encoder.format, code));
  c.equal(nans, limits.number("nan_codes"), "nan_codes");
}

void check_limits(OracleSession& session) {
  const auto file = session.open(kGroup, "limits");
  if (!file) return;
  const OracleEntry formats = OracleEntry(*file).at("formats");
  for (const std::string& key : formats.keys()) {
    Comparison c;
    const Format format = format_of(formats, key);
    check_facts(formats.at(key), facts(format), c);
    for (const ScalarEncoder& encoder : scalar_encoders())
      if (encoder.format == format) check_edges(formats.at(key), encoder, c);
    session.add(c.row(kGroup, "limits/" + key));
  }
}

// ---- decoding

/// fp32 bits of codes, by the array function on the path that is taken now.
std::vector<std::uint32_t> decoded_bits(Format format, std::uint32_t codes) {
  std::vector<unsigned char> stored;
  for (std::uint32_t code = 0; code < codes; ++code)
    for (std::int64_t byte = 0; byte < bytes_of(format); ++byte)
      stored.push_back(static_cast<unsigned char>(code >> (8 * byte)));
  std::vector<float> values(codes);
  decode(format, stored.data(), values.data(), codes);
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(bits_of(value));
  return bits;
}

void compare_decoded(std::uint32_t got, double expected, const std::string& how, std::uint32_t code, Comparison& c) {
  const bool both_nan = std::isnan(float_of(code_of(expected))) && std::isnan(float_of(got));
  c.equal(both_nan ? expected : got, expected, [&] {
    return fmt::format("code 0x{:x} by {}: got bits 0x{:08x}, expected 0x{:08x}", code, how, got, code_of(expected));
  });
}

void check_decode(OracleSession& session) {
  const auto file = session.open(kGroup, "decode");
  if (!file) return;
  for (const std::string& array : file->array_names()) {
    Comparison c;
    const Format format = format_of(OracleEntry(*file).at("arrays"), array);
    const std::vector<double> expected = file->values(array);
    const auto codes = static_cast<std::uint32_t>(expected.size());
    for (std::uint32_t code = 0; code < codes; ++code)
      compare_decoded(bits_of(decode_one(format, code)), expected[code], "the scalar function", code, c);
    for (const std::string& path : codec_paths()) {
      const CodecPath forced(path);
      const std::vector<std::uint32_t> got = decoded_bits(format, codes);
      for (std::uint32_t code = 0; code < codes; ++code)
        compare_decoded(got[code], expected[code], "path " + path, code, c);
    }
    session.add(c.row(kGroup, "decode/" + array));
  }
}

// ---- encoding

/// One expectation of an encode file: input bits, their kinds, expected codes.
struct EncodeVectors {
  const OracleFile& file;
  std::vector<double> inputs, expected;

  std::string place(std::size_t i) const {
    std::string kind;
    const OracleEntry manifest(file);
    if (file.has_array("kind") && manifest.has("kinds")) {
      const std::vector<double> kinds = file.values("kind");
      if (i < kinds.size()) kind = manifest.at("kinds").at(static_cast<std::size_t>(kinds[i])).text() + ", ";
    }
    return fmt::format("input_bits[{}] ({}0x{:08x})", i, kind, code_of(inputs[i]));
  }
};

void compare_codes(const EncodeVectors& vectors, const ScalarEncoder& encoder, const std::string& how,
                   const std::vector<std::uint32_t>& got, Comparison& c) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::uint32_t expected = code_of(vectors.expected[i]);
    const bool both_nan = encoder.is_nan(expected) && encoder.is_nan(got[i]);
    c.equal(both_nan ? expected : got[i], expected, [&] {
      return fmt::format("{} by {}: got code 0x{:x}, expected 0x{:x}", vectors.place(i), how, got[i], expected);
    });
  }
}

void check_encoder(const EncodeVectors& vectors, const ScalarEncoder& encoder, Comparison& c) {
  std::vector<float> inputs;
  for (const double bits : vectors.inputs) inputs.push_back(float_of(code_of(bits)));
  const auto count = static_cast<std::int64_t>(inputs.size());
  std::vector<std::uint32_t> codes(inputs.size());
  scalar_chunks(encoder)(inputs.data(), codes.data(), count);
  compare_codes(vectors, encoder, "the scalar function", codes, c);
  if (!encoder.in_arrays) return;
  for (const std::string& path : codec_paths()) {
    const CodecPath forced(path);
    array_chunks(encoder.format)(inputs.data(), codes.data(), count);
    compare_codes(vectors, encoder, "path " + path, codes, c);
  }
}

/// "expect_saturating" of fp8_e4m3 is the encoder fp8_e4m3_saturating, "expect" of fp16 is fp16.
void check_encode(OracleSession& session) {
  constexpr std::string_view kExpect = "expect";
  for (const std::string& manifest : session.manifests(kGroup, "encode_")) {
    const auto file = session.open(kGroup, manifest);
    const std::string format = OracleEntry(*file).text("format");
    format_of(OracleEntry(*file).at("format"), format);
    for (const std::string& array : file->array_names()) {
      if (!array.starts_with(kExpect)) continue;
      const std::string item = manifest + "/" + array;
      const ScalarEncoder* encoder = find_encoder(format + array.substr(kExpect.size()));
      if (!encoder) {
        session.add({.group = kGroup,
                     .item = item,
                     .verdict = OracleVerdict::skipped,
                     .where = {},
                     .detail = "for information: no conversion here rounds so"});
        continue;
      }
      const EncodeVectors vectors{.file = *file, .inputs = file->values("input_bits"), .expected = file->values(array)};
      if (vectors.inputs.size() != vectors.expected.size())
        throw UsageError(fmt::format("{}: array '{}' has {} values, input_bits has {}", file->path(), array,
                                     vectors.expected.size(), vectors.inputs.size()));
      Comparison c;
      check_encoder(vectors, *encoder, c);
      session.add(c.row(kGroup, item, encoder->in_arrays ? "scalar and array paths" : "scalar"));
    }
  }
}

// ---- all inputs

void compare_checksums(const OracleEntry& column, const std::vector<Checksum>& got, const std::string& how,
                       Comparison& c) {
  for (std::size_t row = 0; row < got.size(); ++row) {
    const Checksum expected{.sum = unsigned_of(column.at("sum").at(row)),
                            .weighted = unsigned_of(column.at("weighted").at(row))};
    c.equal(got[row] == expected ? 0 : 1, 0,
            [&] { return fmt::format("inputs with top byte 0x{:02x} by {}", row, how); });
  }
}

void check_exhaustive(OracleSession& session) {
  const auto file = session.open(kGroup, "exhaustive");
  if (!file) return;
  const OracleEntry manifest(*file), columns = manifest.at("columns");
  for (const std::string& key : columns.keys()) {
    const std::string item = "exhaustive/" + key;
    const ScalarEncoder* encoder = find_encoder(key);
    if (!encoder || !session.options().exhaustive) {
      session.add({.group = kGroup,
                   .item = item,
                   .verdict = OracleVerdict::skipped,
                   .where = {},
                   .detail = encoder ? "left out: --quick" : "no conversion of this name here"});
      continue;
    }
    const OracleEntry column = columns.at(key);
    const int rows = static_cast<int>(std::min<std::size_t>(column.at("sum").size(), kTopBytes));
    const std::uint32_t nan = code_of(manifest.at("canonical_nan").number(std::string(name(encoder->format))));
    Comparison c;
    std::vector<std::string> how;
    const auto compare = [&](const std::string& which, const EncodeChunk& chunks) {
      session.begin(fmt::format("{} by {}", item, which));
      compare_checksums(column, checksums(*encoder, nan, chunks, 0, rows), which, c);
      how.push_back(which);
    };
    compare("the scalar function", scalar_chunks(*encoder));
    if (encoder->in_arrays)
      for (const std::string& path : codec_paths()) {
        if (path == "scalar") continue;  // the scalar function in a loop
        const CodecPath forced(path);
        compare("path " + path, array_chunks(encoder->format));
      }
    session.add(c.row(kGroup, item, fmt::format("all 2^32 inputs by {}", fmt::join(how, ", "))));
  }
}

}  // namespace

Format format_of(const OracleEntry& entry, const std::string& format_name) {
  const std::optional<Format> format = parse_format(format_name);
  if (!format) entry.refuse(fmt::format("names a format that is not known here: '{}'", format_name));
  return *format;
}

std::uint64_t unsigned_of(const OracleEntry& entry, int base) {
  std::string digits = entry.text();
  if (base == 16 && digits.starts_with("0x")) digits.erase(0, 2);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc() || end != digits.data() + digits.size())
    entry.refuse("is no whole number of 64 bits in a string");
  return value;
}

void check_formats_group(OracleSession& session) {
  session.begin("formats");
  check_limits(session);
  check_decode(session);
  check_encode(session);
  check_double_rounding(session);
  check_absorption(session);
  check_exhaustive(session);
}

}  // namespace mixroof
