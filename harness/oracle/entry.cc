#include "harness/oracle/entry.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "harness/status.h"

namespace mixroof {

OracleEntry::OracleEntry(const OracleFile& file) : OracleEntry(file.manifest(), file.path(), {}) {}
OracleEntry::OracleEntry(const nlohmann::json& value, std::string file) : OracleEntry(value, std::move(file), {}) {}
OracleEntry::OracleEntry(const nlohmann::json& value, std::string file, std::string key)
    : value_(&value), file_(std::move(file)), key_(std::move(key)) {}

void OracleEntry::refuse(const std::string& what) const {
  throw UsageError(fmt::format("{}: key '{}' {}", file_, key_, what));
}

OracleEntry OracleEntry::at(const std::string& key) const {
  const std::string path = key_.empty() ? key : key_ + "." + key;
  if (!value_->is_object() || !value_->contains(key))
    throw UsageError(fmt::format("{}: key '{}' is missing", file_, path));
  return {value_->at(key), file_, path};
}

OracleEntry OracleEntry::at(std::size_t index) const {
  const std::string path = fmt::format("{}[{}]", key_, index);
  if (index >= size()) throw UsageError(fmt::format("{}: key '{}' is missing", file_, path));
  return {value_->at(index), file_, path};
}

bool OracleEntry::has(const std::string& key) const {
  return value_->is_object() && value_->contains(key) && !value_->at(key).is_null();
}

std::size_t OracleEntry::size() const {
  if (!value_->is_array()) refuse("is not an array");
  return value_->size();
}

std::vector<OracleEntry> OracleEntry::items() const {
  std::vector<OracleEntry> all;
  for (std::size_t i = 0; i < size(); ++i) all.push_back(at(i));
  return all;
}

std::vector<std::string> OracleEntry::keys() const {
  if (!value_->is_object()) refuse("is not an object");
  std::vector<std::string> all;
  for (const auto& member : value_->items()) all.push_back(member.key());
  return all;
}

double OracleEntry::number() const {
  if (value_->is_number()) return value_->get<double>();
  if (value_->is_string() && (*value_ == "inf" || *value_ == "-inf" || *value_ == "nan")) return oracle_number(*value_);
  refuse("is not a number");
}

std::int64_t OracleEntry::whole() const {
  if (!value_->is_number_integer()) refuse("is not a whole number");
  return value_->get<std::int64_t>();
}

bool OracleEntry::flag() const {
  if (!value_->is_boolean()) refuse("is not true or false");
  return value_->get<bool>();
}

std::string OracleEntry::text() const {
  if (!value_->is_string()) refuse("is not a string");
  return value_->get<std::string>();
}

std::vector<double> OracleEntry::numbers() const {
  std::vector<double> all;
  for (const OracleEntry& item : items()) all.push_back(item.number());
  return all;
}

std::vector<double> OracleEntry::flat() const {
  if (value_->is_boolean()) return {flag() ? 1.0 : 0.0};
  if (!value_->is_array()) return {number()};
  std::vector<double> all;
  for (const OracleEntry& item : items())
    for (const double value : item.flat()) all.push_back(value);
  return all;
}

bool OracleEntry::is_number() const {
  return value_->is_number() || (value_->is_string() && (*value_ == "inf" || *value_ == "-inf" || *value_ == "nan"));
}
bool OracleEntry::is_array() const { return value_->is_array(); }
bool OracleEntry::is_object() const { return value_->is_object(); }

}  // namespace mixroof
