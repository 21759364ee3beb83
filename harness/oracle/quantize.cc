// Group quantize: FP8 scales, codes and amaxes, bit for bit, by the product's quantization kernels.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>

#include "harness/execute/kernel_run.h"
#include "harness/numeric/codec.h"
#include "harness/oracle/comparison.h"
#include "harness/oracle/entry.h"
#include "kernels/control.h"
#include "kernels/fp8_scale/fp8_scale.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/scale_rules.h"
#include "kernels/quantize_blocks/quantize_blocks.h"

namespace mixroof {
namespace {

constexpr const char* kGroup = "quantize";

using Values = std::vector<double>;

Format fp8_format(const OracleEntry& entry, const std::string& name) {
  const std::optional<Format> format = parse_format(name);
  if (!format || !is_fp8(*format)) entry.refuse(fmt::format("names no FP8 format: '{}'", name));
  return *format;
}

std::uint32_t bits_of_fp32(double value) { return std::bit_cast<std::uint32_t>(static_cast<float>(value)); }

/// An operand of codes holds values; the kernel's scale is apart.
Values decoded(Format format, const Values& codes) {
  Values values;
  for (const double code : codes) {
    const auto byte = static_cast<std::uint8_t>(code);
    float value = 0;
    decode(format, &byte, &value, 1);
    values.push_back(value);
  }
  return values;
}

struct Quantized {
  Values values;  // of the codes
  double amax = 0, saturated = 0, found_inf = 0;
};

Quantized quantize(Backend& backend, Format format, const Values& x, double scale,
                   std::optional<double> earlier_amax = {}) {
  const Problem problem =
      quantize_problem(static_cast<std::int64_t>(x.size()), Format::fp32, format, earlier_amax.has_value());
  const auto after = run_on(backend, quantize_kernel(), problem,
                            {x, {scale}, {}, {earlier_amax.value_or(0)}, {0, 0}, Values(kControlSlots, 0.0)});
  return {.values = after[2],
          .amax = after[3][0],
          .saturated = after[4][0],
          .found_inf = slot(after[5].data(), Slot::found_inf)};
}

/// The scale after a window, of one tensor with its history (newest first), which moves.
double next_scale(Backend& backend, Format format, double amax, Values& history, double margin, double scale) {
  const Problem problem = fp8_scale_problem(1, static_cast<std::int64_t>(history.size()), margin);
  const auto after =
      run_on(backend, fp8_scale_kernel(), problem, {{amax}, history, {facts(format).max_finite}, {scale}, {0, 0}});
  history = after[1];
  return after[3][0];
}

/// The scale made of the very values.
struct Current {
  Values values;
  double scale = 1;
};

Current quantize_current(Backend& backend, Format format, const Values& x, double previous_scale) {
  const Problem problem = quantize_current_problem(static_cast<std::int64_t>(x.size()), Format::fp32, format);
  const auto after = run_on(backend, quantize_kernel(), problem,
                            {x, {previous_scale}, {}, {0, 0}, {0, 0}, Values(kControlSlots, 0.0)});
  return {.values = after[2], .scale = after[1][0]};
}

void equal_bits(Comparison& c, double got, double stored_bits, const std::string& what) {
  c.equal(bits_of_fp32(got), stored_bits, [&] { return fmt::format("{}: got {:.9g}", what, got); });
}

void equal_values(Comparison& c, const Values& got, const Values& expected, const std::string& what) {
  c.near(got, expected, {}, what);
}

// ---- per tensor

void check_tensor(OracleSession& session, const OracleFile& file, const OracleEntry& row) {
  const std::string tensor = row.text("tensor"), format_name = row.text("format"), prefix = "tensor/" + tensor + "/";
  const Format format = fp8_format(row.at("format"), format_name);
  Backend& backend = session.device();
  const Values x = file.values(prefix + "x");
  Comparison c;
  for (const std::string mode : {"exact", "power_of_two"}) {
    if (!row.has(mode)) continue;
    const OracleEntry stored = row.at(mode);
    const double scale = std::bit_cast<float>(static_cast<std::uint32_t>(stored.whole("scale_bits")));
    const Quantized q = quantize(backend, format, x, scale);
    equal_bits(c, q.amax, row.number("amax_bits"), "amax");
    if (mode == "exact") {
      Values history = {0};
      equal_bits(c, next_scale(backend, format, q.amax, history, 0, row.number("previous_scale")),
                 stored.number("scale_bits"), "exact.scale");
    }
    const std::string folder = fmt::format("{}{}/{}/", prefix, format_name, mode);
    const Values codes = decoded(format, file.values(folder + "codes"));
    equal_values(c, q.values, codes, folder + "codes");
    if (mode == "exact") {
      const Current current = quantize_current(backend, format, x, row.number("previous_scale"));
      equal_bits(c, current.scale, stored.number("scale_bits"), "exact.scale of the values");
      equal_values(c, current.values, codes, folder + "codes of the values");
    }
    if (!file.has_array(folder + "dequantized")) continue;
    const float inverse = 1.0f / static_cast<float>(scale);
    equal_bits(c, inverse, stored.number("scale_inv_bits"), mode + ".scale_inv");
    Values dequantized;
    for (const double value : q.values) dequantized.push_back(static_cast<float>(value) * inverse);
    equal_values(c, dequantized, file.values(folder + "dequantized"), folder + "dequantized");
  }
  session.add(c.row(kGroup, fmt::format("{} {}", prefix.substr(0, prefix.size() - 1), format_name)));
}

// ---- blocks

/// A tensor in rows of blocks, with the stored results of one format and mode under `folder`.
struct Blocks {
  const OracleFile& file;
  Format format;
  BlockShape shape;
  Values x;
  std::string folder;  // "mxfp8/fp8_e4m3/round_up/"

  std::int64_t of_row() const { return (shape.width + shape.block - 1) / shape.block; }
  std::size_t scales() const { return static_cast<std::size_t>(shape.rows * of_row()); }
  /// Calls f(number of the block's scale, first value, values).
  template <typename F>
  void for_each(F f) const {
    for (std::int64_t row = 0; row < shape.rows; ++row)
      for (std::int64_t b = 0; b < of_row(); ++b) {
        const std::int64_t first = b * shape.block, count = std::min(shape.block, shape.width - first);
        f(static_cast<std::size_t>(row * of_row() + b), row * shape.width + first, count);
      }
  }
  Values scale_array(const std::string& name) const {
    Values values = file.values(folder + name);
    if (values.size() != scales())
      throw UsageError(fmt::format("{}: array '{}{}' has {} values, its blocks are {}", file.path(), folder, name,
                                   values.size(), scales()));
    return values;
  }
};

/// Values of codes and one scale_inv for each block.
struct QuantizedBlocks {
  Values values, scale_inv;
};

QuantizedBlocks by_kernel(Backend& backend, const Blocks& blocks, Format scale_format) {
  const Problem problem = quantize_blocks_problem(blocks.shape, Format::fp32, blocks.format, scale_format);
  const auto after = run_on(backend, quantize_blocks_kernel(), problem,
                            {blocks.x, {}, {}, {0, 0}, {0, 0}, Values(kControlSlots, 0.0)});
  return {.values = after[1], .scale_inv = after[2]};
}

/// Modes that no recipe takes: each block by the kernel that is given its scale.
template <typename ScaleOf>
QuantizedBlocks block_by_block(Backend& backend, const Blocks& blocks, ScaleOf scale_of) {
  QuantizedBlocks q{.values = Values(blocks.x.size()), .scale_inv = Values(blocks.scales())};
  blocks.for_each([&](std::size_t block, std::int64_t first, std::int64_t count) {
    const Values x(blocks.x.begin() + first, blocks.x.begin() + first + count);
    const float scale = scale_of(block, x);
    const Values values = quantize(backend, blocks.format, x, scale).values;
    std::copy(values.begin(), values.end(), q.values.begin() + first);
    q.scale_inv[block] = 1.0f / scale;
  });
  return q;
}

double amax_of(const Values& x) { return largest_magnitude(x); }

void compare_codes(const Blocks& blocks, const QuantizedBlocks& q, Comparison& c) {
  equal_values(c, q.values, decoded(blocks.format, blocks.file.values(blocks.folder + "codes")),
               blocks.folder + "codes");
}

/// Scales in fp32: "exact" as the product makes them, "power_of_two" as they are stored.
void compare_fp32_blocks(Backend& backend, const Blocks& blocks, const std::string& mode, Comparison& c) {
  const Values stored = blocks.scale_array("scale");
  const bool is_product = mode == "exact";
  const QuantizedBlocks q = is_product ? by_kernel(backend, blocks, Format::fp32)
                                       : block_by_block(backend, blocks, [&](std::size_t block, const Values&) {
                                           return static_cast<float>(stored[block]);
                                         });
  if (is_product)
    blocks.for_each([&](std::size_t block, std::int64_t first, std::int64_t count) {
      const Values x(blocks.x.begin() + first, blocks.x.begin() + first + count);
      const float scale = scale_of_amax(static_cast<float>(amax_of(x)), facts(blocks.format).max_finite).scale;
      c.equal(scale, stored[block], fmt::format("{}scale[{}]", blocks.folder, block));
    });
  equal_values(c, q.scale_inv, blocks.scale_array("scale_inv"), blocks.folder + "scale_inv");
  compare_codes(blocks, q, c);
}

/// Scales in E8M0: "round_up" by the product's kernel, "ocp_floor" by its other rule.
void compare_mx_blocks(Backend& backend, const Blocks& blocks, const std::string& mode, Comparison& c) {
  const double max_finite = facts(blocks.format).max_finite;
  const QuantizedBlocks q =
      mode == "round_up"
          ? by_kernel(backend, blocks, Format::e8m0)
          : block_by_block(backend, blocks, [&](std::size_t, const Values& x) {
              return mx_scale_of_amax(static_cast<float>(amax_of(x)), max_finite, MxRounding::floor).scale;
            });
  Values scale_inv;
  for (const double code : blocks.scale_array("e8m0"))
    scale_inv.push_back(decode_e8m0(static_cast<std::uint8_t>(code)));
  equal_values(c, q.scale_inv, scale_inv, blocks.folder + "e8m0");
  compare_codes(blocks, q, c);
  if (!blocks.file.has_array(blocks.folder + "dequantized")) return;
  Values dequantized(q.values.size());
  blocks.for_each([&](std::size_t block, std::int64_t first, std::int64_t count) {
    for (std::int64_t i = first; i < first + count; ++i)
      dequantized[static_cast<std::size_t>(i)] = q.values[static_cast<std::size_t>(i)] * q.scale_inv[block];
  });
  equal_values(c, dequantized, blocks.file.values(blocks.folder + "dequantized"), blocks.folder + "dequantized");
}

struct BlockKind {
  const char* section;  // of the manifest
  const char* folder;   // of its arrays
  std::array<const char*, 2> modes;
  void (*compare)(Backend& backend, const Blocks& blocks, const std::string& mode, Comparison& c);
};
constexpr BlockKind kBlockKinds[] = {{"block_1x128", "block128", {"exact", "power_of_two"}, compare_fp32_blocks},
                                     {"mxfp8", "mxfp8", {"ocp_floor", "round_up"}, compare_mx_blocks}};

void check_blocks(OracleSession& session, const OracleFile& file, const BlockKind& kind, const OracleEntry& entry) {
  const auto size = [&](const char* key) {
    if (entry.whole(key) < 1) entry.at(key).refuse("is below 1");
    return entry.whole(key);
  };
  const BlockShape shape{.rows = size("rows"), .width = size("columns"), .block = size("block"), .along_rows = true};
  const Values x = file.values(std::string(kind.folder) + "/x");
  if (static_cast<std::int64_t>(x.size()) != shape.rows * shape.width)
    entry.refuse(
        fmt::format("has {} rows of {}, array '{}/x' has {} values", shape.rows, shape.width, kind.folder, x.size()));
  for (const Format format : {Format::fp8_e4m3, Format::fp8_e5m2})
    for (const char* mode : kind.modes) {
      const std::string folder = fmt::format("{}/{}/{}/", kind.folder, name(format), mode);
      if (!file.has_array(folder + "codes")) continue;
      Comparison c;
      kind.compare(session.device(), {.file = file, .format = format, .shape = shape, .x = x, .folder = folder}, mode,
                   c);
      session.add(c.row(kGroup, folder.substr(0, folder.size() - 1)));
    }
}

// ---- delayed scaling

void compare_step(const OracleEntry& step, Format format, const Quantized& q, const Values& x, Comparison& c) {
  const Values codes = decoded(format, step.numbers("codes"));
  if (codes.size() != x.size()) step.at("codes").refuse("has another size than x_bits");
  equal_values(c, q.values, codes, step.key() + ".codes");
  if (step.has("saturated")) c.equal(q.saturated, step.number("saturated"), step.key() + ".saturated");
  c.equal(q.amax, static_cast<float>(step.number("amax")), step.key() + ".amax");
}

void check_trace(OracleSession& session, const OracleEntry& trace) {
  const std::string format_name = trace.text("format"), algorithm = trace.text("algorithm");
  const std::string policy = trace.has("policy") ? trace.text("policy") : "";
  const std::string item =
      fmt::format("delayed/{} {} {}{}{}", trace.key(), algorithm, format_name, policy.empty() ? "" : " ", policy);
  const auto skip = [&](const char* why) {
    session.add({.group = kGroup, .item = item, .verdict = OracleVerdict::skipped, .where = {}, .detail = why});
  };
  if (!policy.empty() && policy != "nan_keeps_scale") return skip("the product's policy is that a NaN keeps the scale");
  if (algorithm != "max" && algorithm != "most_recent") return skip("no such algorithm here");
  const Format format = fp8_format(trace.at("format"), format_name);
  // The newest amax is the maximum of a history of one.
  const std::int64_t length = algorithm == "max" ? trace.whole("history_length") : 1;
  if (length < 1) trace.at("history_length").refuse("is below 1");
  Values history(static_cast<std::size_t>(length), 0.0);
  double scale = trace.number("initial_scale");
  Comparison c;
  for (const OracleEntry& step : trace.items("steps")) {
    Values x;
    for (const double bits : step.numbers("x_bits"))
      x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    c.equal(scale, step.number("scale_used"), step.key() + ".scale_used");
    const Quantized q = quantize(session.device(), format, x, scale);
    compare_step(step, format, q, x, c);
    scale = next_scale(session.device(), format, q.amax, history, trace.number("margin"), scale);
    equal_bits(c, scale, step.number("scale_after_bits"), step.key() + ".scale_after");
  }
  session.add(c.row(kGroup, item));
}

/// The amax of a window is the maximum over its micro-batches.
void check_window(OracleSession& session, const OracleEntry& window) {
  constexpr std::string_view kScale = "expected_scale_";
  Comparison c;
  for (const std::string& key : window.keys()) {
    if (!key.starts_with(kScale)) continue;
    const Format format = fp8_format(window.at(key), "fp8_" + key.substr(kScale.size()));
    std::optional<double> amax;
    for (const double of_micro_batch : window.numbers("amax_per_micro_batch"))
      amax = quantize(session.device(), format, {of_micro_batch, -of_micro_batch / 2}, 1, amax).amax;
    c.equal(amax.value_or(0), window.number("expected_amax"), "window.expected_amax");
    Values history = {0};
    c.equal(next_scale(session.device(), format, amax.value_or(0), history, 0, 1), window.number(key), "window." + key);
  }
  session.add(c.row(kGroup, "delayed/window"));
}

}  // namespace

void check_quantize_group(OracleSession& session) {
  session.begin(kGroup);
  if (const auto file = session.open(kGroup, "quantize")) {
    const OracleEntry manifest(*file);
    if (manifest.has("per_tensor"))
      for (const OracleEntry& row : manifest.items("per_tensor")) check_tensor(session, *file, row);
    for (const BlockKind& kind : kBlockKinds)
      if (manifest.has(kind.section)) check_blocks(session, *file, kind, manifest.at(kind.section));
  }
  if (const auto file = session.open(kGroup, "delayed")) {
    const OracleEntry manifest(*file);
    if (manifest.has("traces"))
      for (const OracleEntry& trace : manifest.items("traces")) check_trace(session, trace);
    if (manifest.has("window")) check_window(session, manifest.at("window"));
  }
}

}  // namespace mixroof
