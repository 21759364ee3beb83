// A value of an oracle's manifest together with the path that leads to it, so that whatever is missing or of another
// type is reported with the file and the key: "DIR/scaling/traces.json: key 'traces[3].scale' is missing".
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "harness/execute/oracle_file.h"

namespace mixroof {

/// A view: the file must outlive it. Every function that reads throws UsageError naming file and key.
class OracleEntry {
 public:
  /// The manifest of a file.
  explicit OracleEntry(const OracleFile& file);
  /// A value that stands in no file: worked examples of tests.
  OracleEntry(const nlohmann::json& value, std::string file);

  OracleEntry at(const std::string& key) const;
  OracleEntry at(std::size_t index) const;
  /// Present and not null.
  bool has(const std::string& key) const;
  /// Elements of an array.
  std::vector<OracleEntry> items() const;
  std::size_t size() const;
  /// Keys of an object, in alphabetical order.
  std::vector<std::string> keys() const;

  double number() const;  // also "inf", "-inf", "nan"
  std::int64_t whole() const;
  bool flag() const;
  std::string text() const;
  std::vector<double> numbers() const;
  /// A number, true (1) or false (0), or an array of these.
  std::vector<double> flat() const;

  double number(const std::string& key) const { return at(key).number(); }
  std::int64_t whole(const std::string& key) const { return at(key).whole(); }
  bool flag(const std::string& key) const { return at(key).flag(); }
  std::string text(const std::string& key) const { return at(key).text(); }
  std::vector<double> numbers(const std::string& key) const { return at(key).numbers(); }
  std::vector<OracleEntry> items(const std::string& key) const { return at(key).items(); }
  double number_or(const std::string& key, double otherwise) const { return has(key) ? number(key) : otherwise; }

  const std::string& file() const { return file_; }
  const std::string& key() const { return key_; }
  bool is_number() const;
  bool is_array() const;
  bool is_object() const;
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  OracleEntry(const nlohmann::json& value, std::string file, std::string key);

  const nlohmann::json* value_;
  std::string file_, key_;
};

}  // namespace mixroof
