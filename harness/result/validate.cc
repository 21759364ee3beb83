#include "harness/result/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validator.hpp>

#include "harness/result/embedded.h"

namespace mixroof {
namespace {

using Faults = std::vector<DocumentFault>;

const nlohmann::json& schema_json() {
  static const nlohmann::json schema = nlohmann::json::parse(result_schema_text());
  return schema;
}

const valijson::Schema& schema() {
  static const valijson::Schema& parsed = *[] {
    static valijson::Schema target;
    valijson::SchemaParser parser;
    const valijson::adapters::NlohmannJsonAdapter adapter(schema_json());
    parser.populateSchema(adapter, target);
    return &target;
  }();
  return parsed;
}

// ---- schema

std::string escape_token(std::string_view key) {
  std::string token;
  for (const char c : key) {
    if (c == '~')
      token += "~0";
    else if (c == '/')
      token += "~1";
    else
      token += c;
  }
  return token;
}

/// The validator's path is "<root>", then "[key]" or "[index]".
std::string pointer_of(const std::vector<std::string>& context) {
  std::string pointer;
  for (std::size_t i = 1; i < context.size(); ++i)
    pointer += '/' + escape_token(std::string_view(context[i]).substr(1, context[i].size() - 2));
  return pointer;
}

/// What stands at the place of a fault, short enough for one line.
std::string found_text(const nlohmann::json& document, const std::string& pointer) {
  constexpr std::size_t kMost = 40;
  std::string text =
      document.at(nlohmann::json::json_pointer(pointer)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMost) text = text.substr(0, kMost) + "…";
  return text;
}

/// The validator reports a fault and then each schema and container around it: the innermost is the one to read.
bool encloses(const DocumentFault& outer, const DocumentFault& inner) {
  if (&outer == &inner) return false;
  if (inner.pointer.starts_with(outer.pointer + '/')) return true;
  return outer.pointer == inner.pointer && outer.what.starts_with("Failed to validate against") &&
         !inner.what.starts_with("Failed to validate against");
}

void check_schema(const Json& document, Faults& faults) {
  const nlohmann::json plain = document;
  const valijson::adapters::NlohmannJsonAdapter adapter(plain);
  valijson::Validator validator;
  valijson::ValidationResults results;
  if (validator.validate(schema(), adapter, &results)) return;
  Faults all;
  for (const auto& error : results) all.push_back({pointer_of(error.context), error.description});
  std::set<std::string> seen;
  for (DocumentFault& fault : all) {
    const auto around = [&](const DocumentFault& other) { return encloses(fault, other); };
    if (std::any_of(all.begin(), all.end(), around) || !seen.insert(fault.text()).second) continue;
    faults.push_back({fault.pointer, fault.what + " Found " + found_text(plain, fault.pointer)});
  }
}

// ---- what a schema cannot say; every function bears missing keys and wrong types, which the schema has reported

const Json& at(const Json& object, const char* key) {
  static const Json missing;
  if (!object.is_object()) return missing;
  const auto found = object.find(key);
  return found == object.end() ? missing : *found;
}

void check_order(const Json& stat, const char* low, const char* high, const std::string& pointer, Faults& faults) {
  const Json &a = at(stat, low), &b = at(stat, high);
  if (a.is_number() && b.is_number() && !(a.get<double>() <= b.get<double>()))
    faults.push_back({pointer, fmt::format("{} {} is above {} {}", low, a.dump(), high, b.dump())});
}

void check_samples(const Json& stat, const std::string& pointer, Faults& faults) {
  const Json &samples = at(stat, "samples"), &n = at(stat, "n"), &min = at(stat, "min"), &max = at(stat, "max");
  if (!samples.is_array() || samples.empty() || !n.is_number_integer()) return;
  if (samples.size() != n.get<std::size_t>())
    faults.push_back({pointer, fmt::format("n is {} but there are {} samples", n.dump(), samples.size())});
  const Json& clocks = at(stat, "clock_hz");
  if (clocks.is_array() && clocks.size() != samples.size())
    faults.push_back({pointer, fmt::format("{} samples but {} clocks", samples.size(), clocks.size())});
  for (const Json& sample : samples)
    if (sample.is_number() && ((min.is_number() && sample < min) || (max.is_number() && sample > max))) {
      faults.push_back({pointer, fmt::format("sample {} is outside [min, max]", sample.dump())});
      return;
    }
}

bool is_stat(const Json& value) { return value.is_object() && value.contains("n") && value.contains("median"); }

/// Every summary anywhere below `value`.
void check_stats(const Json& value, const std::string& pointer, Faults& faults) {
  if (!value.is_structured()) return;
  if (is_stat(value)) {
    for (const auto& [low, high] :
         {std::pair{"min", "median"}, {"median", "max"}, {"low", "median"}, {"median", "high"}})
      check_order(value, low, high, pointer, faults);
    check_samples(value, pointer, faults);
    return;
  }
  for (const auto& [key, element] : value.items()) check_stats(element, pointer + '/' + escape_token(key), faults);
}

void check_distinct(const Json& document, const char* list, const char* identity, Faults& faults) {
  std::set<std::string> seen;
  const Json& rows = at(document, list);
  if (!rows.is_array()) return;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Json& id = at(rows[i], identity);
    if (id.is_string() && !seen.insert(id.get<std::string>()).second)
      faults.push_back({fmt::format("/{}/{}", list, i), fmt::format("a second row with {} {}", identity, id.dump())});
  }
}

void check_ceiling_ids(const Json& document, Faults& faults) {
  std::set<std::string> known;
  for (const Json& ceiling : at(document, "ceilings"))
    if (const Json& id = at(ceiling, "id"); id.is_string()) known.insert(id.get<std::string>());
  const Json& kernels = at(document, "kernels");
  for (std::size_t i = 0; i < kernels.size(); ++i)
    for (const Json& id : at(at(kernels.is_array() ? kernels[i] : kernels, "roof"), "ceiling_ids"))
      if (id.is_string() && !known.contains(id.get<std::string>()))
        faults.push_back({fmt::format("/kernels/{}/roof", i), fmt::format("no ceiling has the id {}", id.dump())});
}

void check_clocks(const Json& step, const std::string& pointer, Faults& faults) {
  const Json& clocks = at(step, "clocks");
  const Json &attempted = at(clocks, "updates_attempted"), &applied = at(clocks, "updates_applied"),
             &skipped = at(clocks, "updates_skipped");
  if (!attempted.is_number_integer() || !applied.is_number_integer() || !skipped.is_number_integer()) return;
  if (attempted.get<std::int64_t>() != applied.get<std::int64_t>() + skipped.get<std::int64_t>())
    faults.push_back({pointer + "/clocks", fmt::format("{} updates attempted, but {} applied and {} skipped",
                                                       attempted.dump(), applied.dump(), skipped.dump())});
}

void check_verdict(const Json& step, const std::string& pointer, Faults& faults) {
  const Json& numerics = at(step, "numerics");
  const Json &verdict = at(numerics, "verdict"), &reason = at(numerics, "reason");
  if (verdict.is_string() && verdict != "ok" && (!reason.is_string() || reason.get_ref<const std::string&>().empty()))
    faults.push_back({pointer + "/numerics", fmt::format("verdict {} without a reason", verdict.dump())});
}

/// All recipes of one run consume the same tokens; one that failed or was cut off has seen fewer updates.
void check_effective_tokens(const Json& document, const Json& step, const std::string& pointer, Faults& faults) {
  if (at(at(document, "run"), "status") != "complete" || at(step, "status") != "ok") return;
  const Json& expected = at(at(document, "workload"), "effective_tokens_per_update");
  const Json& found = at(step, "effective_tokens_per_update");
  if (expected.is_number() && found.is_number() && expected != found)
    faults.push_back({pointer + "/effective_tokens_per_update",
                      fmt::format("{}, but the workload has {}", found.dump(), expected.dump())});
}

void check_steps(const Json& document, Faults& faults) {
  const Json& steps = at(document, "steps");
  if (!steps.is_array()) return;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::string pointer = fmt::format("/steps/{}", i);
    check_clocks(steps[i], pointer, faults);
    check_verdict(steps[i], pointer, faults);
    check_effective_tokens(document, steps[i], pointer, faults);
  }
}

// ---- the schema beside a document

/// The schemas that apply to one place of a document: a node, what it refers to, and the parts that it combines.
std::vector<const nlohmann::json*> applicable(const nlohmann::json& node) {
  std::vector<const nlohmann::json*> nodes = {&node};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const nlohmann::json& next = *nodes[i];
    if (const auto ref = next.find("$ref"); ref != next.end())
      nodes.push_back(&schema_json().at(nlohmann::json::json_pointer(ref->get<std::string>().substr(1))));
    if (const auto then = next.find("then"); then != next.end()) nodes.push_back(&*then);
    if (const auto all = next.find("allOf"); all != next.end())
      for (const nlohmann::json& part : *all) nodes.push_back(&part);
  }
  return nodes;
}

const nlohmann::json* child_schema(const std::vector<const nlohmann::json*>& nodes, const std::string& key) {
  for (const nlohmann::json* node : nodes)
    if (node->contains("properties") && (*node)["properties"].contains(key)) return &(*node)["properties"][key];
  for (const nlohmann::json* node : nodes)
    if (node->contains("additionalProperties")) return &(*node)["additionalProperties"];
  return nullptr;
}

const nlohmann::json* item_schema(const std::vector<const nlohmann::json*>& nodes) {
  for (const nlohmann::json* node : nodes)
    if (node->contains("items")) return &(*node)["items"];
  return nullptr;
}

bool describes_keys(const std::vector<const nlohmann::json*>& nodes) {
  for (const nlohmann::json* node : nodes)
    if (node->contains("properties") || node->contains("additionalProperties")) return true;
  return false;
}

void find_unknown(const Json& value, const nlohmann::json& node, const std::string& pointer,
                  std::vector<std::string>& found) {
  const auto nodes = applicable(node);
  if (value.is_array()) {
    const nlohmann::json* items = item_schema(nodes);
    for (std::size_t i = 0; items != nullptr && i < value.size(); ++i)
      find_unknown(value[i], *items, fmt::format("{}/{}", pointer, i), found);
  }
  // An object whose keys the schema leaves free (shape, optimizer) has no unknown ones.
  if (!value.is_object() || !describes_keys(nodes)) return;
  for (const auto& [key, member] : value.items()) {
    const std::string place = pointer + '/' + escape_token(key);
    if (const nlohmann::json* child = child_schema(nodes, key))
      find_unknown(member, *child, place, found);
    else if (!key.ends_with("_reason"))
      found.push_back(place);
  }
}

/// Values of `key` (or the items, for "-") in every value of `values`.
std::vector<const Json*> descend(const std::vector<const Json*>& values, const std::string& key, bool items) {
  std::vector<const Json*> below;
  for (const Json* value : values) {
    if (items && value->is_array())
      for (const Json& item : *value) below.push_back(&item);
    if (!items && value->is_object() && value->contains(key)) below.push_back(&(*value)[key]);
  }
  return below;
}

void find_unused(const std::vector<const Json*>& values, const nlohmann::json& node, const std::string& pointer,
                 std::vector<std::string>& found) {
  for (const nlohmann::json* part : applicable(node)) {
    if (part->contains("items")) find_unused(descend(values, "", true), (*part)["items"], pointer + "/-", found);
    if (!part->contains("properties")) continue;
    for (const auto& [key, child] : (*part)["properties"].items()) {
      const auto below = descend(values, key, false);
      if (below.empty())
        found.push_back(pointer + '/' + escape_token(key));
      else
        find_unused(below, child, pointer + '/' + escape_token(key), found);
    }
  }
}

}  // namespace

std::vector<DocumentFault> validate_document(const Json& document) {
  Faults faults;
  check_schema(document, faults);
  if (!document.is_object()) return faults;
  check_stats(document, "", faults);
  check_distinct(document, "ceilings", "id", faults);
  check_distinct(document, "kernels", "id", faults);
  check_distinct(document, "steps", "recipe", faults);
  check_ceiling_ids(document, faults);
  check_steps(document, faults);
  return faults;
}

std::vector<std::string> unknown_keys(const Json& document) {
  std::vector<std::string> found;
  find_unknown(document, schema_json(), "", found);
  return found;
}

std::vector<std::string> unused_schema_keys(const Json& document) {
  std::vector<std::string> found;
  find_unused({&document}, schema_json(), "", found);
  std::set<std::string> distinct(found.begin(), found.end());
  return {distinct.begin(), distinct.end()};
}

}  // namespace mixroof
