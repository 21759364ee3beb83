// The catalogue of promised ceilings, results/hardware.json: dense rates from data sheets with their sources. To add a
// device: one row there. A device that is not in it has no promise; there is no default.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/numeric/format.h"

namespace mixroof {

/// One row. What is unknown is absent, never 0.
struct Hardware {
  std::string id;    // "h100_sxm_80gb"; look up by id, never by a part of the name
  std::string name;  // as the vendor prints it
  std::string vendor;
  std::string kind;  // gpu, accelerator, cpu
  std::string architecture;
  std::optional<std::string> form_factor;
  std::optional<std::string> compute_capability;  // "9.0"
  std::optional<std::int64_t> compute_unit_count;
  std::optional<std::string> compute_unit_kind;  // SM, CU, core
  std::optional<double> boost_clock_hz;
  std::optional<double> tensor_boost_clock_hz;  // the clock that the tensor peaks imply
  std::optional<std::int64_t> memory_bytes;
  std::optional<double> memory_bandwidth_bytes_per_s;
  std::optional<std::int64_t> l2_bytes;
  std::optional<double> tdp_w;
  std::map<std::string, double> peak_dense_flop_per_s;  // by path: fp32, bf16_tensor, …; unknown paths are absent
  std::map<std::string, double> not_dense_flop_per_s;   // printed for a path, but sparse or of another accumulate mode
  std::vector<std::string> unsupported_paths;           // absent above because the device cannot, not because unknown
  std::vector<std::string> weakly_sourced_fields;
  std::vector<std::string> sources;  // where the values come from, as text
  std::string confidence;            // high, medium, low

  /// Dense peak of a path, or of products with inputs of a format that are accumulated in fp32.
  std::optional<double> peak(std::string_view path) const;
  std::optional<double> peak(Format inputs) const { return peak(path_of(inputs)); }
  /// Path of such products: "fp32", "tf32_tensor", "fp16_tensor_fp32_accumulate", "bf16_tensor", …
  static std::string_view path_of(Format inputs);
  bool is_unsupported(std::string_view path) const;
};

/// All rows, in the order of the file.
std::span<const Hardware> all_hardware();
/// Throws UsageError with near names.
const Hardware& find_hardware(std::string_view id);
/// The row whose name equals what the device prints; none unless exactly one does.
const Hardware* find_hardware_by_name(std::string_view device_name);

/// Rows of a catalogue. Throws UsageError: no JSON, a missing key, a peak of 0, or one that the row itself lists as not
/// dense.
std::vector<Hardware> parse_hardware(std::string_view text, std::string_view file);

}  // namespace mixroof
