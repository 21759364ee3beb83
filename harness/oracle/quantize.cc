// Group quantize: FP8 scales, codes and amaxes, bit for bit, by the product's quantization kernels.
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <optional>

#include "harness/execute/kernel_run.h"
#include "harness/oracle/comparison.h"
#include "harness/oracle/entry.h"
#include "harness/oracle/quantize_blocks.h"
#include "kernels/control.h"
#include "kernels/fp8_scale/fp8_scale.h"
#include "kernels/quantize/quantize.h"

namespace mixroof {
namespace {

constexpr const char* kGroup = kQuantizeGroup;

using Values = std::vector<double>;

Format fp8_format(const OracleEntry& entry, const std::string& name) {
  const std::optional<Format> format = parse_format(name);
  if (!format || !is_fp8(*format)) entry.refuse(fmt::format("names no FP8 format: '{}'", name));
  return *format;
}

std::uint32_t bits_of_fp32(double value) { return std::bit_cast<std::uint32_t>(static_cast<float>(value)); }

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
    equal_values(c, q.values, decoded_codes(format, file.values(folder + "codes")), folder + "codes");
    if (!file.has_array(folder + "dequantized")) continue;
    const float inverse = 1.0f / static_cast<float>(scale);
    equal_bits(c, inverse, stored.number("scale_inv_bits"), mode + ".scale_inv");
    Values dequantized;
    for (const double value : q.values) dequantized.push_back(static_cast<float>(value) * inverse);
    equal_values(c, dequantized, file.values(folder + "dequantized"), folder + "dequantized");
  }
  session.add(c.row(kGroup, fmt::format("{} {}", prefix.substr(0, prefix.size() - 1), format_name)));
}

// ---- delayed scaling

void compare_step(const OracleEntry& step, Format format, const Quantized& q, const Values& x, Comparison& c) {
  const Values codes = decoded_codes(format, step.numbers("codes"));
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
    if (manifest.has("block_1x128")) check_block_scales(session, *file, manifest.at("block_1x128"));
    if (manifest.has("mxfp8")) check_microscaling(session, *file, manifest.at("mxfp8"));
  }
  if (const auto file = session.open(kGroup, "delayed")) {
    const OracleEntry manifest(*file);
    if (manifest.has("traces"))
      for (const OracleEntry& trace : manifest.items("traces")) check_trace(session, trace);
    if (manifest.has("window")) check_window(session, manifest.at("window"));
  }
}

}  // namespace mixroof
