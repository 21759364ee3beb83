#include "harness/result/hardware.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/result/embedded.h"
#include "harness/result/read.h"
#include "harness/status.h"

namespace mixroof {
namespace {

template <typename T>
std::optional<T> optional_at(const Json& row, const char* key) {
  const Json& value = row.at(key);
  if (value.is_null()) return std::nullopt;
  return value.get<T>();
}

/// Rates by path; null is left out.
std::map<std::string, double> rates_at(const Json& row, const char* key) {
  std::map<std::string, double> rates;
  for (const auto& [path, value] : row.at(key).items())
    if (!value.is_null()) rates[path] = value.get<double>();
  return rates;
}

std::vector<std::string> source_texts(const Json& row, const Json& sources) {
  std::vector<std::string> texts;
  for (const auto& [group, names] : row.at("value_sources").items())
    for (const Json& name : names) {
      std::string text = sources.at(name.get<std::string>()).get<std::string>();
      if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(std::move(text));
    }
  return texts;
}

void check_rates(const Hardware& hardware) {
  for (const auto& [path, rate] : hardware.peak_dense_flop_per_s) {
    if (!(rate > 0)) throw UsageError(fmt::format("{} {}: a peak of {}; unknown is null", hardware.id, path, rate));
    const auto rejected = hardware.not_dense_flop_per_s.find(path);
    if (rejected != hardware.not_dense_flop_per_s.end() && rejected->second == rate)
      throw UsageError(
          fmt::format("{} {}: {} is not the dense rate; use the one without sparsity", hardware.id, path, rate));
  }
}

Hardware parse_row(const Json& row, const Json& sources) {
  Hardware hardware;
  hardware.id = row.at("id").get<std::string>();
  hardware.name = row.at("name").get<std::string>();
  hardware.vendor = row.at("vendor").get<std::string>();
  hardware.kind = row.at("kind").get<std::string>();
  hardware.architecture = row.at("architecture").get<std::string>();
  hardware.form_factor = optional_at<std::string>(row, "form_factor");
  hardware.compute_capability = optional_at<std::string>(row, "compute_capability");
  hardware.compute_unit_count = optional_at<std::int64_t>(row, "compute_unit_count");
  hardware.compute_unit_kind = optional_at<std::string>(row, "compute_unit_kind");
  hardware.boost_clock_hz = optional_at<double>(row, "boost_clock_hz");
  hardware.tensor_boost_clock_hz = optional_at<double>(row, "tensor_boost_clock_hz");
  hardware.memory_bytes = optional_at<std::int64_t>(row, "memory_bytes");
  hardware.memory_bandwidth_bytes_per_s = optional_at<double>(row, "memory_bandwidth_bytes_per_s");
  hardware.l2_bytes = optional_at<std::int64_t>(row, "l2_bytes");
  hardware.tdp_w = optional_at<double>(row, "tdp_watts");
  hardware.peak_dense_flop_per_s = rates_at(row, "peak_dense_flops_per_s");
  hardware.not_dense_flop_per_s = rates_at(row, "not_dense_flops_per_s");
  hardware.unsupported_paths = row.at("unsupported_paths").get<std::vector<std::string>>();
  hardware.weakly_sourced_fields = row.at("weakly_sourced_fields").get<std::vector<std::string>>();
  hardware.sources = source_texts(row, sources);
  hardware.confidence = row.at("confidence").get<std::string>();
  check_rates(hardware);
  return hardware;
}

}  // namespace

std::string_view Hardware::path_of(Format inputs) {
  switch (inputs) {
    case Format::fp64:
      return "fp64";
    case Format::fp32:
      return "fp32";
    case Format::tf32:
      return "tf32_tensor";
    case Format::fp16:
      return "fp16_tensor_fp32_accumulate";
    case Format::bf16:
      return "bf16_tensor";
    case Format::fp8_e4m3:
    case Format::fp8_e5m2:
      return "fp8_tensor_fp32_accumulate";
    case Format::int32:
      return "int32";
    case Format::e8m0:
      break;
  }
  return {};
}

std::optional<double> Hardware::peak(std::string_view path) const {
  const auto found = peak_dense_flop_per_s.find(std::string(path));
  if (found == peak_dense_flop_per_s.end()) return std::nullopt;
  return found->second;
}

bool Hardware::is_unsupported(std::string_view path) const {
  return std::find(unsupported_paths.begin(), unsupported_paths.end(), path) != unsupported_paths.end();
}

std::vector<Hardware> parse_hardware(std::string_view text, std::string_view file) {
  const Json catalogue = parse_json(text, file);
  std::vector<Hardware> rows;
  try {
    for (const Json& row : catalogue.at("devices")) rows.push_back(parse_row(row, catalogue.at("sources")));
  } catch (const Json::exception& error) {
    throw UsageError(fmt::format("{}: device {}: {}", file, rows.size(), error.what()));
  }
  return rows;
}

std::span<const Hardware> all_hardware() {
  static const std::vector<Hardware> rows = parse_hardware(hardware_text(), "results/hardware.json");
  return rows;
}

const Hardware& find_hardware(std::string_view id) {
  std::vector<std::string> ids;
  for (const Hardware& hardware : all_hardware()) {
    if (hardware.id == id) return hardware;
    ids.push_back(hardware.id);
  }
  throw_unknown("hardware", id, ids, "mixroof list hardware");
}

const Hardware* find_hardware_by_name(std::string_view device_name) {
  const Hardware* found = nullptr;
  for (const Hardware& hardware : all_hardware()) {
    if (hardware.name != device_name) continue;
    if (found != nullptr) return nullptr;
    found = &hardware;
  }
  return found;
}

}  // namespace mixroof
