// Named models and readers of configuration files. To add a named model: one row of `named_models`. To add a family:
// one row of `kFamilies` with its parameters and its reader of Hugging Face's config.json.
#include "harness/program/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "harness/numeric/checked.h"
#include "harness/status.h"

namespace mixroof {
namespace {

using nlohmann::json;

constexpr std::int64_t kLargestDimension = 2147483647;  // indices of tokens and positions are int32
constexpr std::int64_t kMostLayers = 65536;
constexpr double kInitStddev = 0.02;

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

  /// A value as a message shows it: short, on one line.
  static std::string text(const json& value) {
    if (value.is_structured()) return fmt::format("an {}", value.type_name());
    const std::string all = value.dump();
    return all.size() <= 60 ? all : all.substr(0, 57) + "...";
  }
};

struct Family {
  std::string_view name;  // model_type of config.json
  std::vector<ParameterSpec> (*before_layers)(const Model& model);
  std::vector<ParameterSpec> (*of_layer)(const Model& model, int layer);
  std::vector<ParameterSpec> (*after_layers)(const Model& model);
  Model (*read)(const Config& config);
};

ParameterSpec matrix(std::string name, int layer, std::int64_t rows, std::int64_t columns, double stddev) {
  return {std::move(name), {rows, columns}, layer, true, 0.0, stddev};
}

ParameterSpec constant_vector(std::string name, int layer, std::int64_t size, double value) {
  return {std::move(name), {size}, layer, false, value, 0.0};
}

std::vector<ParameterSpec> gpt2_before_layers(const Model& m) {
  return {matrix("wte.weight", -1, m.vocab, m.width, kInitStddev),
          matrix("wpe.weight", -1, m.context, m.width, kInitStddev)};
}

/// Matrices are [out, in]. Projections back into the residual stream start smaller (GPT-2 report, section 2.3): their
/// 2·layers contributions add up.
std::vector<ParameterSpec> gpt2_of_layer(const Model& m, int layer) {
  const double residual_stddev = kInitStddev / std::sqrt(2.0 * static_cast<double>(m.layers));
  const std::string h = fmt::format("h.{}.", layer);
  const std::int64_t qkv = checked_product({3, m.width});
  return {constant_vector(h + "ln_1.weight", layer, m.width, 1),
          constant_vector(h + "ln_1.bias", layer, m.width, 0),
          matrix(h + "attn.c_attn.weight", layer, qkv, m.width, kInitStddev),
          constant_vector(h + "attn.c_attn.bias", layer, qkv, 0),
          matrix(h + "attn.c_proj.weight", layer, m.width, m.width, residual_stddev),
          constant_vector(h + "attn.c_proj.bias", layer, m.width, 0),
          constant_vector(h + "ln_2.weight", layer, m.width, 1),
          constant_vector(h + "ln_2.bias", layer, m.width, 0),
          matrix(h + "mlp.c_fc.weight", layer, m.hidden, m.width, kInitStddev),
          constant_vector(h + "mlp.c_fc.bias", layer, m.hidden, 0),
          matrix(h + "mlp.c_proj.weight", layer, m.width, m.hidden, residual_stddev),
          constant_vector(h + "mlp.c_proj.bias", layer, m.width, 0)};
}

std::vector<ParameterSpec> gpt2_after_layers(const Model& m) {
  return {constant_vector("ln_f.weight", -1, m.width, 1), constant_vector("ln_f.bias", -1, m.width, 0)};
}

/// Switches of Hugging Face's GPT2Config that would make it another model than the one trained here.
void refuse_other_gpt2(const Config& config) {
  static constexpr std::pair<const char*, bool> kSwitches[] = {{"tie_word_embeddings", true},
                                                               {"scale_attn_weights", true},
                                                               {"scale_attn_by_inverse_layer_idx", false},
                                                               {"add_cross_attention", false}};
  for (const auto& [key, required] : kSwitches) {
    const json* value = config.find(key);
    if (value != nullptr && *value != json(required))
      config.refuse(fmt::format("\"{}\" is {}, only {} is supported; set it to {} or remove the key", key,
                                Config::text(*value), required, required));
  }
  const std::string activation = config.string("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh")
    config.refuse(
        fmt::format("\"activation_function\" is {}, supported are gelu_new and gelu_pytorch_tanh (the same "
                    "tanh form)",
                    Config::text(json(activation))));
}

double read_norm_eps(const Config& config, const char* key) {
  const json* value = config.find(key);
  if (value == nullptr) return 1e-5;
  const double eps = value->is_number() ? value->get<double>() : 0.0;
  if (!(eps > 0 && eps < 1))
    config.refuse(
        fmt::format("\"{}\" is {}, expected a number between 0 and 1 such as 1e-5", key, Config::text(*value)));
  return eps;
}

Model read_gpt2(const Config& config) {
  refuse_other_gpt2(config);
  Model model;
  model.family = "gpt2";
  model.layers = config.dimension("n_layer");
  model.width = config.dimension("n_embd");
  model.heads = model.kv_heads = config.dimension("n_head");
  model.vocab = config.dimension("vocab_size");
  model.context = config.dimension(
      config.find("n_positions") == nullptr && config.find("n_ctx") != nullptr ? "n_ctx" : "n_positions");
  const json* inner = config.find("n_inner");
  model.hidden = inner == nullptr ? checked_product({4, model.width}) : config.dimension("n_inner", *inner);
  model.norm_eps = read_norm_eps(config, "layer_norm_epsilon");
  return model;
}

constexpr Family kFamilies[] = {
    {"gpt2", gpt2_before_layers, gpt2_of_layer, gpt2_after_layers, read_gpt2},
};

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  return names;
}

const Family* look_up_family(std::string_view name) {
  for (const Family& family : kFamilies)
    if (family.name == name) return &family;
  return nullptr;
}

const Family& family_of(const Model& model) {
  const Family* family = look_up_family(model.family);
  if (family == nullptr)
    throw UsageError(fmt::format("model {}: family '{}' is not supported; supported are {}", model.name, model.family,
                                 fmt::join(family_names(), ", ")));
  return *family;
}

std::int64_t count(std::span<const ParameterSpec> specs) {
  std::int64_t total = 0;
  for (const ParameterSpec& spec : specs) {
    std::int64_t size = 1;
    for (const std::int64_t extent : spec.shape) size = checked_product({size, extent});
    total = checked_sum(total, size);
  }
  return total;
}

Model gpt2(std::string name, std::int64_t layers, std::int64_t width, std::int64_t heads, std::int64_t vocab,
           std::int64_t context) {
  Model model;
  model.name = std::move(name);
  model.layers = layers;
  model.width = width;
  model.heads = model.kv_heads = heads;
  model.hidden = 4 * width;
  model.vocab = vocab;
  model.context = context;
  return model;
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

const Family& family_of(const Config& config) {
  if (config.find("model_type") == nullptr)
    config.refuse(fmt::format("key \"model_type\" is missing; add one of {}", fmt::join(family_names(), ", ")));
  const std::string type = config.string("model_type", "");
  const Family* family = look_up_family(type);
  if (family == nullptr)
    config.refuse(fmt::format("\"model_type\" is {}, which is not supported; nearest supported: {}",
                              Config::text(json(type)), fmt::join(nearest_names(type, family_names()), ", ")));
  return *family;
}

/// What a model from a file is called: config.json says nothing by itself, its folder usually does.
std::string name_of(const std::filesystem::path& file) {
  const std::string folder = std::filesystem::absolute(file).lexically_normal().parent_path().filename().string();
  const std::string stem = file.stem().string();
  return stem == "config" && !folder.empty() ? folder : stem;
}

/// The first fault of a model's shape; empty when it is fine.
std::string fault(const Model& m) {
  const std::pair<const char*, std::int64_t> dimensions[] = {
      {"layers", m.layers}, {"width", m.width}, {"heads", m.heads},    {"kv_heads", m.kv_heads},
      {"hidden", m.hidden}, {"vocab", m.vocab}, {"context", m.context}};
  for (const auto& [key, value] : dimensions)
    if (value < 1 || value > kLargestDimension)
      return fmt::format("{} is {}, expected 1 to {}", key, value, kLargestDimension);
  if (m.layers > kMostLayers) return fmt::format("layers is {}, at most {} are supported", m.layers, kMostLayers);
  if (m.width % m.heads != 0)
    return fmt::format("width {} is not a multiple of {} heads; choose heads that divide it", m.width, m.heads);
  if (m.heads % m.kv_heads != 0)
    return fmt::format("{} heads are not a multiple of {} kv_heads; choose kv_heads that divide them", m.heads,
                       m.kv_heads);
  if (!(m.norm_eps > 0 && m.norm_eps < 1))
    return fmt::format("norm_eps is {}, expected a number between 0 and 1 such as 1e-5", m.norm_eps);
  try {
    m.parameters();
  } catch (const Error&) {
    return fmt::format(
        "the number of parameters passes 2^63 - 1 (width {}, hidden {}, vocab {}, layers {}); choose "
        "smaller ones",
        m.width, m.hidden, m.vocab, m.layers);
  }
  return {};
}

}  // namespace

std::int64_t Model::parameters() const {
  const Family& row = family_of(*this);
  const std::int64_t outside = checked_sum(count(row.before_layers(*this)), count(row.after_layers(*this)));
  return checked_sum(outside, checked_product({layers, count(row.of_layer(*this, 0))}));
}

std::vector<ParameterSpec> parameter_specs(const Model& model) {
  const Family& family = family_of(model);
  std::vector<ParameterSpec> specs = family.before_layers(model);
  const auto append = [&](std::vector<ParameterSpec> more) {
    specs.insert(specs.end(), std::move_iterator(more.begin()), std::move_iterator(more.end()));
  };
  for (int layer = 0; layer < model.layers; ++layer) append(family.of_layer(model, layer));
  append(family.after_layers(model));
  return specs;
}

std::span<const Model> named_models() {
  // OpenAI's four shapes; the two small ones run within a test and within a first look on a laptop.
  static const std::vector<Model> models = {
      gpt2("gpt2-tiny", 2, 64, 2, 256, 64),         gpt2("gpt2-10m", 4, 384, 6, 8192, 1024),
      gpt2("gpt2-124m", 12, 768, 12, 50257, 1024),  gpt2("gpt2-355m", 24, 1024, 16, 50257, 1024),
      gpt2("gpt2-774m", 36, 1280, 20, 50257, 1024), gpt2("gpt2-1558m", 48, 1600, 25, 50257, 1024),
  };
  return models;
}

Model find_model(std::string_view name_or_path) {
  std::vector<std::string> names;
  for (const Model& model : named_models()) {
    if (model.name == name_or_path) return model;
    names.push_back(model.name);
  }
  if (name_or_path.ends_with(".json")) return read_model_config(name_or_path);
  throw_unknown("model", name_or_path, names, "mixroof list models; or the path of a config.json");
}

Model read_model_config(const std::filesystem::path& file) {
  const Config config = open_config(file);
  Model model = family_of(config).read(config);
  model.name = name_of(file);
  if (const std::string what = fault(model); !what.empty()) config.refuse(what);
  return model;
}

void validate(const Model& model) {
  family_of(model);
  if (const std::string what = fault(model); !what.empty())
    throw UsageError(fmt::format("model {}: {}", model.name, what));
}

}  // namespace mixroof
