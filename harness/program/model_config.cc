// Reads Hugging Face's config.json. To add a model type: one row of `kModelTypes` and its reader. A reader refuses what
// would make the file another model than the one trained here; keys without influence on a training update are ignored.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "harness/numeric/checked.h"
#include "harness/program/model.h"
#include "harness/status.h"

namespace mixroof {
namespace {

using nlohmann::json;

constexpr std::int64_t kLargestDimension = std::numeric_limits<std::int32_t>::max();

/// A configuration file while it is read: every complaint names the file and the key.
struct Config {
  std::string file;
  json values;

  [[noreturn]] void refuse(std::string_view what) const { throw UsageError(fmt::format("{}: {}", file, what)); }

  /// Null counts as absent, as in Hugging Face's files.
  const json* find(const char* key) const {
    const auto found = values.find(key);
    return found == values.end() || found->is_null() ? nullptr : &*found;
  }

  /// Whole number in [1, 2^31 - 1].
  std::int64_t dimension(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) refuse(fmt::format("key \"{}\" is missing; add a whole number of at least 1", key));
    return dimension(key, *value);
  }

  std::int64_t dimension_or(const char* key, std::int64_t fallback) const {
    const json* value = find(key);
    return value == nullptr ? fallback : dimension(key, *value);
  }

  std::int64_t dimension(const char* key, const json& value) const {
    if (!value.is_number_integer())
      refuse(fmt::format("\"{}\" is {}, expected a whole number of at least 1", key, text(value)));
    // Unsigned numbers past 2^63 would turn negative as std::int64_t.
    const bool too_large = value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{kLargestDimension};
    if (too_large || value.get<std::int64_t>() < 1)
      refuse(fmt::format("\"{}\" is {}, expected a whole number from 1 to {}", key, text(value), kLargestDimension));
    return value.get<std::int64_t>();
  }

  std::string string(const char* key, std::string_view fallback) const {
    const json* value = find(key);
    if (value == nullptr) return std::string(fallback);
    if (!value->is_string()) refuse(fmt::format("\"{}\" is {}, expected a string", key, text(*value)));
    return value->get<std::string>();
  }

  bool flag(const char* key, bool fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) refuse(fmt::format("\"{}\" is {}, expected true or false", key, text(*value)));
    return value->get<bool>();
  }

  /// A switch of which one position is supported; absent counts as that one.
  void require(const char* key, bool supported) const {
    const json* value = find(key);
    if (value != nullptr && *value != json(supported))
      refuse(fmt::format("\"{}\" is {}, only {} is supported; set it to {} or remove the key", key, text(*value),
                         supported, supported));
  }

  double norm_eps(const char* key, double fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    const double eps = value->is_number() ? value->get<double>() : 0.0;
    if (!(eps > 0 && eps < 1))
      refuse(fmt::format("\"{}\" is {}, expected a number between 0 and 1 such as 1e-5", key, text(*value)));
    return eps;
  }

  /// A value as a message shows it: short, on one line.
  static std::string text(const json& value) {
    if (value.is_structured()) return fmt::format("an {}", value.type_name());
    const std::string all = value.dump();
    return all.size() <= 60 ? all : all.substr(0, 57) + "...";
  }
};

Model read_gpt2(const Config& config) {
  config.require("tie_word_embeddings", true);
  config.require("scale_attn_weights", true);
  config.require("scale_attn_by_inverse_layer_idx", false);
  config.require("add_cross_attention", false);
  const std::string activation = config.string("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh")
    config.refuse(fmt::format(
        "\"activation_function\" is {}, supported are gelu_new and gelu_pytorch_tanh (the same tanh form)",
        Config::text(json(activation))));
  Model model;
  model.family = "gpt2";
  model.layers = config.dimension("n_layer");
  model.width = config.dimension("n_embd");
  model.heads = model.kv_heads = config.dimension("n_head");
  model.head_dim = std::max<std::int64_t>(model.width / model.heads, 1);
  model.vocab = config.dimension("vocab_size");
  model.context = config.dimension(
      config.find("n_positions") == nullptr && config.find("n_ctx") != nullptr ? "n_ctx" : "n_positions");
  model.hidden = config.dimension_or("n_inner", checked_product({4, model.width}));
  model.norm_eps = config.norm_eps("layer_norm_epsilon", 1e-5);
  model.tied_head = model.qkv_bias = true;
  return model;
}

/// The type that an object with rotary settings names, under its newer or older key.
std::string rope_type(const Config& config, const char* key, const json& rope) {
  if (!rope.is_object()) config.refuse(fmt::format("\"{}\" is {}, expected an object or null", key, Config::text(rope)));
  for (const char* name : {"rope_type", "type"})
    if (const auto found = rope.find(name); found != rope.end() && !found->is_null())
      return found->is_string() ? found->get<std::string>() : Config::text(*found);
  return "default";
}

/// Scaled frequencies change values and no cost, so a file that asks for them is told how to be measured all the same.
void refuse_scaled_rope(const Config& config, const char* key, const json& rope) {
  if (const std::string type = rope_type(config, key, rope); type != "default")
    config.refuse(fmt::format("\"{}\" of type {} is not supported; time and memory are the same without it, remove the key",
                              key, type));
}

double rope_theta(const Config& config, const json& value) {
  const double theta = value.is_number() ? value.get<double>() : 0.0;
  if (!(theta > 0 && std::isfinite(theta)))
    config.refuse(
        fmt::format("\"rope_theta\" is {}, expected a number above 0 such as 10000", Config::text(value)));
  return theta;
}

double read_rope_theta(const Config& config) {
  if (const json* scaling = config.find("rope_scaling")) refuse_scaled_rope(config, "rope_scaling", *scaling);
  const json* theta = config.find("rope_theta");
  if (const json* rope = config.find("rope_parameters")) {  // where newer files keep it
    refuse_scaled_rope(config, "rope_parameters", *rope);
    if (const auto found = rope->find("rope_theta"); found != rope->end() && !found->is_null()) theta = &*found;
  }
  return theta == nullptr ? 10000.0 : rope_theta(config, *theta);
}

/// Attention here is over the whole sequence: where a window bounds it, sequences up to that window are the same model.
std::int64_t read_context(const Config& config, bool uses_window) {
  const std::int64_t positions = config.dimension("max_position_embeddings");
  return uses_window ? std::min(positions, config.dimension_or("sliding_window", positions)) : positions;
}

Model read_llama_shape(const Config& config) {
  if (const std::string activation = config.string("hidden_act", "silu"); activation != "silu")
    config.refuse(fmt::format("\"hidden_act\" is {}, only silu is supported; set it to silu or remove the key",
                              Config::text(json(activation))));
  Model model;
  model.family = "llama";
  model.layers = config.dimension("num_hidden_layers");
  model.width = config.dimension("hidden_size");
  model.heads = config.dimension("num_attention_heads");
  model.kv_heads = config.dimension_or("num_key_value_heads", model.heads);
  if (config.find("head_dim") == nullptr && model.width % model.heads != 0)
    config.refuse(fmt::format("width {} is not a multiple of {} heads; choose heads that divide it or add \"head_dim\"",
                              model.width, model.heads));
  model.head_dim = config.dimension_or("head_dim", model.width / model.heads);
  model.hidden = config.dimension("intermediate_size");
  model.vocab = config.dimension("vocab_size");
  model.norm_eps = config.norm_eps("rms_norm_eps", 1e-6);
  model.rope_theta = read_rope_theta(config);
  model.tied_head = config.flag("tie_word_embeddings", false);
  return model;
}

Model read_llama(const Config& config) {
  config.require("attention_bias", false);  // would give o_proj one too
  config.require("mlp_bias", false);
  Model model = read_llama_shape(config);
  model.context = read_context(config, false);
  return model;
}

Model read_mistral(const Config& config) {
  config.require("attention_bias", false);
  Model model = read_llama_shape(config);
  model.context = read_context(config, true);
  return model;
}

Model read_qwen2(const Config& config) {
  config.require("attention_bias", true);  // of q, k and v; the type has them always
  Model model = read_llama_shape(config);
  model.qkv_bias = true;
  model.context = read_context(config, config.flag("use_sliding_window", false));
  return model;
}

struct ModelType {
  std::string_view name;  // model_type of config.json
  Model (*read)(const Config& config);
};
constexpr ModelType kModelTypes[] = {
    {"gpt2", read_gpt2}, {"llama", read_llama}, {"mistral", read_mistral}, {"qwen2", read_qwen2}};

std::vector<std::string> model_type_names() {
  std::vector<std::string> names;
  for (const ModelType& type : kModelTypes) names.emplace_back(type.name);
  return names;
}

const ModelType& type_of(const Config& config) {
  if (config.find("model_type") == nullptr)
    config.refuse(fmt::format("key \"model_type\" is missing; add one of {}", fmt::join(model_type_names(), ", ")));
  const std::string wanted = config.string("model_type", "");
  for (const ModelType& type : kModelTypes)
    if (type.name == wanted) return type;
  config.refuse(fmt::format("\"model_type\" is {}, which is not supported; nearest supported: {}",
                            Config::text(json(wanted)), fmt::join(nearest_names(wanted, model_type_names()), ", ")));
}

Config open_config(const std::filesystem::path& file) {
  Config config{file.string(), {}};
  std::error_code error;
  if (!std::filesystem::exists(file, error)) config.refuse("no such file; give the path of a Hugging Face config.json");
  if (!std::filesystem::is_regular_file(file, error)) config.refuse("is not a file; give the path of a config.json");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) config.refuse("cannot be opened; check its permissions");
  try {
    config.values = json::parse(stream);
  } catch (const json::exception& e) {
    config.refuse(fmt::format("is not JSON ({}); give a Hugging Face config.json", e.what()));
  }
  if (!config.values.is_object())
    config.refuse(
        fmt::format("holds an {} instead of an object; give a Hugging Face config.json", config.values.type_name()));
  return config;
}

/// What a model from a file is called: config.json says nothing by itself, its folder usually does.
std::string name_of(const std::filesystem::path& file) {
  const std::string folder = std::filesystem::absolute(file).lexically_normal().parent_path().filename().string();
  const std::string stem = file.stem().string();
  return stem == "config" && !folder.empty() ? folder : stem;
}

}  // namespace

Model read_model_config(const std::filesystem::path& file) {
  const Config config = open_config(file);
  Model model = type_of(config).read(config);
  model.name = name_of(file);
  if (const std::string what = shape_fault(model); !what.empty()) config.refuse(what);
  return model;
}

}  // namespace mixroof
