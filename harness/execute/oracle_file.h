// Reader of an oracle folder: JSON manifests with raw little-endian arrays beside them (X.json and X.bin, layout as the
// oracle's README describes it). Shapes, names and hyperparameters come from the manifest, never from this code.
// To add a stored type: one row in oracle_file.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace mixroof {

/// The oracle folder to use: the environment's MIXROOF_ORACLE, else `fallback` when it is a folder, else nothing.
std::optional<std::string> find_oracle(const std::string& fallback = {});

class OracleFile {
 public:
  /// `stem` is the path without ending ("DIR/kernels/kernels"). The manifest may name no .bin (plain JSON files).
  /// Throws UsageError naming the file and the key when something is missing, malformed or shorter than promised.
  explicit OracleFile(const std::string& stem);
  ~OracleFile();
  OracleFile(const OracleFile&) = delete;
  OracleFile& operator=(const OracleFile&) = delete;

  /// The manifest. Members that every reader needs come through the functions below, with errors that name the file.
  const nlohmann::json& manifest() const;
  /// Path of the manifest, for messages.
  const std::string& path() const { return path_; }

  /// In alphabetical order.
  std::vector<std::string> array_names() const;
  bool has_array(std::string_view name) const;
  /// Dimensions of an array; empty for a scalar.
  const std::vector<std::int64_t>& shape(std::string_view name) const;
  /// "float64", "float32", "uint64", "uint32", "int32", "uint16", "uint8".
  const std::string& dtype(std::string_view name) const;
  /// All elements, row-major, converted exactly (uint64 above 2^53 rounds).
  std::vector<double> values(std::string_view name) const;

 private:
  struct Array {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::int64_t offset = 0, count = 0;
  };
  const Array& array(std::string_view name) const;
  void read_arrays();

  std::string path_;
  std::unique_ptr<nlohmann::json> manifest_;
  std::map<std::string, Array, std::less<>> arrays_;
  std::vector<std::byte> bytes_;
};

/// A number of a manifest: JSON numbers, and "inf", "-inf", "nan" as strings. Throws UsageError for anything else.
double oracle_number(const nlohmann::json& value);
/// A member of an object as T; throws UsageError naming `file` and `key` when absent or of another type.
template <typename T>
T oracle_member(const nlohmann::json& object, const std::string& key, const std::string& file);

}  // namespace mixroof
