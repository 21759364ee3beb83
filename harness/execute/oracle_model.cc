#include "harness/execute/oracle_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "harness/numeric/checked.h"

namespace mixroof {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const OracleFile& file, const std::string& what) {
  throw UsageError(fmt::format("{}: {}", file.path(), what));
}

template <typename T>
T member(const OracleFile& file, const json& object, const char* key) {
  return oracle_member<T>(object, key, file.path());
}

/// A member that may be absent.
std::int64_t dimension_or(const OracleFile& file, const json& config, const char* key, std::int64_t fallback) {
  return config.contains(key) ? member<std::int64_t>(file, config, key) : fallback;
}

/// What ids of a micro-batch must be: so many, from `least` to below `limit`.
struct IdRange {
  std::size_t count;
  std::int64_t least, limit;
};

std::vector<std::int32_t> ids(const OracleFile& file, const json& micro_batch, const char* key, const IdRange& range) {
  const auto array = member<std::string>(file, micro_batch, key);
  const std::vector<double> values = file.values(array);
  if (values.size() != range.count)
    refuse(file, fmt::format("array {} has {} values, expected {} as the first tokens have", array, values.size(),
                             range.count));
  for (const double value : values)
    if (value < static_cast<double>(range.least) || value >= static_cast<double>(range.limit))
      refuse(file, fmt::format("array {} has the value {}, expected {} to {}", array, value, range.least, range.limit - 1));
  return {values.begin(), values.end()};
}

bool has_documents(const json& micro_batch) { return micro_batch.contains("segments") && !micro_batch["segments"].is_null(); }

/// Where in its row the run of equal segments begins that holds each place.
std::vector<std::int32_t> first_keys(const std::vector<std::int32_t>& segments, std::int64_t seq) {
  std::vector<std::int32_t> keys(segments.size());
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const auto place = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % seq);
    keys[i] = place > 0 && segments[i] == segments[i - 1] ? keys[i - 1] : place;
  }
  return keys;
}

}  // namespace

OracleModel::OracleModel(const std::string& stem) : file_(stem) {
  read_model();
  specs_ = parameter_specs(model_);
  read_parts();
}

void OracleModel::read_model() {
  const auto family = member<std::string>(file_, file_.manifest(), "model");
  const auto config = member<json>(file_, file_.manifest(), "config");
  const auto dimension = [&](const char* key) { return member<std::int64_t>(file_, config, key); };
  model_.name = "oracle " + family;
  model_.family = family;
  model_.layers = dimension("n_layer");
  model_.width = dimension("d_model");
  model_.heads = dimension("n_head");
  model_.kv_heads = dimension_or(file_, config, "n_kv_head", model_.heads);
  model_.head_dim = dimension("head_dim");
  model_.hidden = dimension("d_hidden");
  model_.vocab = dimension("vocab");
  model_.context = dimension_or(file_, config, "n_context", dimension("seq"));
  model_.norm_eps = member<double>(file_, file_.manifest(), "norm_eps");
  if (config.contains("rope_theta")) model_.rope_theta = member<double>(file_, config, "rope_theta");
  model_.tied_head = model_.qkv_bias = family == "gpt2";
  validate(model_);
}

/// The oracle keeps every part as an array of its own, in the order of the model's parameters.
void OracleModel::read_parts() {
  const auto order = member<std::vector<std::string>>(file_, file_.manifest(), "order");
  std::size_t next = 0;
  const auto take = [&](std::vector<std::int64_t> shape) -> const std::string& {
    if (next == order.size()) refuse(file_, fmt::format("\"order\" ends after {} parameters, {} has more", next, model_.name));
    const std::string& name = order[next++];
    if (file_.shape("params0/" + name) != shape)
      refuse(file_, fmt::format("parameter {} has another shape than number {} of {}", name, next, model_.name));
    return name;
  };
  for (const ParameterSpec& spec : specs_) {
    std::vector<OraclePart> of_parameter;
    std::int64_t offset = 0;
    const auto add = [&](std::int64_t rows) {
      std::vector<std::int64_t> shape = spec.shape;
      shape.front() = rows;
      const std::int64_t count = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
      of_parameter.push_back({take(shape), offset, count});
      offset += count;
    };
    if (spec.parts.empty()) add(spec.shape.front());
    for (const ParameterPart& part : spec.parts) add(part.rows);
    parts_.push_back(std::move(of_parameter));
  }
  if (next != order.size())
    refuse(file_, fmt::format("\"order\" lists {} parameters, {} has {}", order.size(), model_.name, next));
}

std::vector<std::string> OracleModel::variant_names() const {
  const auto variants = member<json>(file_, file_.manifest(), "variants");
  std::vector<std::string> names;
  for (const auto& [name, unused] : variants.items()) names.push_back(name);
  return names;
}

std::vector<double> OracleModel::values(std::string_view prefix, std::size_t parameter) const {
  std::vector<double> joined;
  for (const OraclePart& part : parts_.at(parameter)) {
    const std::string name = fmt::format("{}/{}", prefix, part.name);
    if (!file_.has_array(name)) return {};
    const std::vector<double> values = file_.values(name);
    if (static_cast<std::int64_t>(values.size()) != part.count)
      refuse(file_, fmt::format("array {} has {} values, expected {}", name, values.size(), part.count));
    joined.insert(joined.end(), values.begin(), values.end());
  }
  return joined;
}

std::vector<std::vector<float>> OracleModel::initial_parameters(const json& variant) const {
  const auto factor = member<double>(file_, variant, "multiply_2d_params0_by");
  std::vector<std::vector<float>> all;
  for (std::size_t p = 0; p < specs_.size(); ++p) {
    std::vector<float> narrow;
    for (const double value : values("params0", p)) narrow.push_back(static_cast<float>(specs_[p].is_matrix ? value * factor : value));
    all.push_back(std::move(narrow));
  }
  return all;
}

LowerOptions OracleModel::options(const json& variant) const {
  const auto adamw = member<json>(file_, file_.manifest(), "adamw");
  LowerOptions o;
  o.optimizer = {.beta1 = member<double>(file_, adamw, "beta1"),
                 .beta2 = member<double>(file_, adamw, "beta2"),
                 .eps = member<double>(file_, adamw, "eps"),
                 .weight_decay = member<double>(file_, adamw, "weight_decay")};
  o.update.learning_rate = member<double>(file_, adamw, "lr");
  const auto max_norm = member<json>(file_, variant, "max_norm");
  o.update.max_norm = max_norm.is_null() ? 0.0 : oracle_number(max_norm);
  o.decay_all = member<std::string>(file_, variant, "weight_decay_on") == "all";
  return o;
}

MicroBatch OracleModel::micro_batch(const json& arrays, const Batch& batch) const {
  const std::int64_t seq = batch.seq;
  const auto places_of_all = static_cast<std::size_t>(batch.micro_batch * seq);
  MicroBatch m{.tokens = ids(file_, arrays, "tokens", {places_of_all, 0, model_.vocab}),
               .targets = ids(file_, arrays, "targets", {places_of_all, -1, model_.vocab})};
  if (!batch.packed) return m;
  // A row that is one document restarts with the row.
  std::vector<std::int32_t> segments(m.tokens.size()), places(m.tokens.size());
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % seq);
  const bool is_given = has_documents(arrays);
  constexpr std::int64_t kAny = std::int64_t{1} << 31;
  m.first_key = first_keys(is_given ? ids(file_, arrays, "segments", {places_of_all, -kAny, kAny}) : segments, seq);
  m.position_ids = is_given ? ids(file_, arrays, "positions", {places_of_all, 0, model_.context}) : places;
  return m;
}

OracleVariant OracleModel::variant(const std::string& name) const {
  const auto variants = member<json>(file_, file_.manifest(), "variants");
  OracleVariant v{.name = name,
                  .batch = {},
                  .options = {},
                  .parameters = {},
                  .windows = {},
                  .expected = member<json>(file_, variants, name.c_str())};
  const auto windows = member<std::vector<std::vector<json>>>(file_, v.expected, "windows");
  if (windows.empty() || windows.front().empty()) refuse(file_, fmt::format("variant {} has no micro-batch", name));
  const auto first = member<std::string>(file_, windows.front().front(), "tokens");
  const std::vector<std::int64_t>& shape = file_.shape(first);
  if (shape.size() != 2) refuse(file_, fmt::format("array {} has {} dimensions, expected batch and sequence", first, shape.size()));
  v.batch = {.micro_batch = shape[0], .seq = shape[1], .micro_batches = 1};
  for (const std::vector<json>& window : windows) {
    v.batch.micro_batches = std::max(v.batch.micro_batches, static_cast<std::int64_t>(window.size()));
    v.batch.packed = v.batch.packed || std::any_of(window.begin(), window.end(), has_documents);
  }
  for (const std::vector<json>& window : windows) {
    Window& micro_batches = v.windows.emplace_back();
    for (const json& arrays : window) micro_batches.push_back(micro_batch(arrays, v.batch));
  }
  v.options = options(v.expected);
  v.parameters = initial_parameters(v.expected);
  return v;
}

}  // namespace mixroof
