#include "harness/execute/oracle_file.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "harness/numeric/checked.h"
#include "harness/status.h"

namespace mixroof {
namespace {

static_assert(std::endian::native == std::endian::little, "the arrays are little-endian");

template <typename T>
void widen(const std::byte* from, std::int64_t count, double* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    out[i] = static_cast<double>(value);
  }
}

struct StoredType {
  std::string_view name;
  std::int64_t bytes;
  void (*widen)(const std::byte* from, std::int64_t count, double* out);
};

constexpr std::array<StoredType, 7> kStoredTypes = {{
    {"float64", 8, widen<double>},
    {"float32", 4, widen<float>},
    {"uint64", 8, widen<std::uint64_t>},
    {"uint32", 4, widen<std::uint32_t>},
    {"int32", 4, widen<std::int32_t>},
    {"uint16", 2, widen<std::uint16_t>},
    {"uint8", 1, widen<std::uint8_t>},
}};

const StoredType* find_stored_type(std::string_view name) {
  for (const StoredType& type : kStoredTypes)
    if (type.name == name) return &type;
  return nullptr;
}

std::vector<std::byte> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw UsageError(fmt::format("{}: cannot be opened (is the oracle folder complete?)", path));
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.tellg()));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw UsageError(fmt::format("{}: could not be read to its end", path));
  return bytes;
}

}  // namespace

std::optional<std::string> find_oracle(const std::string& fallback) {
  if (const char* named = std::getenv("MIXROOF_ORACLE"); named && *named) return named;
  std::error_code ignored;
  if (!fallback.empty() && std::filesystem::is_directory(fallback, ignored)) return fallback;
  return std::nullopt;
}

double oracle_number(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  throw UsageError(
      fmt::format("oracle: {} is not a number (a JSON number, \"inf\", \"-inf\" or \"nan\")", value.dump()));
}

template <typename T>
T oracle_member(const nlohmann::json& object, const std::string& key, const std::string& file) {
  if (!object.is_object() || !object.contains(key)) throw UsageError(fmt::format("{}: key '{}' is missing", file, key));
  try {
    return object.at(key).get<T>();
  } catch (const nlohmann::json::exception& error) {
    throw UsageError(fmt::format("{}: key '{}' has another type than expected ({})", file, key, error.what()));
  }
}
template bool oracle_member(const nlohmann::json&, const std::string&, const std::string&);
template std::int64_t oracle_member(const nlohmann::json&, const std::string&, const std::string&);
template double oracle_member(const nlohmann::json&, const std::string&, const std::string&);
template std::string oracle_member(const nlohmann::json&, const std::string&, const std::string&);
template std::vector<std::int64_t> oracle_member(const nlohmann::json&, const std::string&, const std::string&);
template std::vector<std::string> oracle_member(const nlohmann::json&, const std::string&, const std::string&);
template std::vector<std::vector<nlohmann::json>> oracle_member(const nlohmann::json&, const std::string&, const std::string&);
template nlohmann::json oracle_member(const nlohmann::json&, const std::string&, const std::string&);

OracleFile::OracleFile(const std::string& stem) : path_(stem + ".json") {
  const std::vector<std::byte> text = read_file(path_);
  const auto* begin = reinterpret_cast<const char*>(text.data());
  try {
    manifest_ = std::make_unique<nlohmann::json>(nlohmann::json::parse(begin, begin + text.size()));
  } catch (const nlohmann::json::parse_error& error) {
    throw UsageError(fmt::format("{}: not JSON ({})", path_, error.what()));
  }
  if (!manifest_->is_object()) throw UsageError(fmt::format("{}: the manifest is not a JSON object", path_));
  if (manifest_->contains("arrays")) read_arrays();
}

OracleFile::~OracleFile() = default;

const nlohmann::json& OracleFile::manifest() const { return *manifest_; }

void OracleFile::read_arrays() {
  const auto bin = oracle_member<nlohmann::json>(*manifest_, "bin", path_);
  const auto folder = std::filesystem::path(path_).parent_path();
  const std::string bin_path = (folder / oracle_member<std::string>(bin, "file", path_)).string();
  bytes_ = read_file(bin_path);
  for (const auto& [name, entry] : manifest_->at("arrays").items()) {
    Array a{.dtype = oracle_member<std::string>(entry, "dtype", path_),
            .shape = oracle_member<std::vector<std::int64_t>>(entry, "shape", path_),
            .offset = oracle_member<std::int64_t>(entry, "offset", path_),
            .count = 1};
    const StoredType* type = find_stored_type(a.dtype);
    if (!type) throw UsageError(fmt::format("{}: array '{}' has unknown dtype '{}'", path_, name, a.dtype));
    for (const std::int64_t size : a.shape) a.count = checked_product({a.count, size});
    const std::int64_t end = checked_sum(a.offset, checked_product({a.count, type->bytes}));
    if (a.offset < 0 || a.count < 0 || end > static_cast<std::int64_t>(bytes_.size()))
      throw UsageError(
          fmt::format("{}: array '{}' ends at byte {}, {} has {} bytes", path_, name, end, bin_path, bytes_.size()));
    arrays_.emplace(name, std::move(a));
  }
}

std::vector<std::string> OracleFile::array_names() const {
  std::vector<std::string> names;
  for (const auto& entry : arrays_) names.push_back(entry.first);
  return names;
}

bool OracleFile::has_array(std::string_view name) const { return arrays_.find(name) != arrays_.end(); }

const OracleFile::Array& OracleFile::array(std::string_view name) const {
  const auto found = arrays_.find(name);
  if (found == arrays_.end()) throw UsageError(fmt::format("{}: array '{}' is missing", path_, name));
  return found->second;
}

const std::vector<std::int64_t>& OracleFile::shape(std::string_view name) const { return array(name).shape; }
const std::string& OracleFile::dtype(std::string_view name) const { return array(name).dtype; }

std::vector<double> OracleFile::values(std::string_view name) const {
  const Array& a = array(name);
  std::vector<double> out(static_cast<std::size_t>(a.count));
  find_stored_type(a.dtype)->widen(bytes_.data() + a.offset, a.count, out.data());
  return out;
}

}  // namespace mixroof
