// Named models and the parameters of each family. To add a named model: one row of `named_models`. To add a family: one
// row of `kFamilies` with its parameters, its reader in model_config.cc and its lowering.
#include "harness/program/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <utility>

#include "harness/numeric/checked.h"
#include "harness/status.h"

namespace mixroof {
namespace {

constexpr std::int64_t kLargestDimension = 2147483647;  // indices of tokens and positions are int32
constexpr std::int64_t kMostLayers = 65536;
constexpr double kInitStddev = 0.02;

struct Family {
  std::string_view name;
  std::vector<ParameterSpec> (*before_layers)(const Model& model);
  std::vector<ParameterSpec> (*of_layer)(const Model& model, int layer);
  std::vector<ParameterSpec> (*after_layers)(const Model& model);
  std::string (*fault)(const Model& model);  // beyond what shape_fault() checks of every family
};

ParameterSpec matrix(std::string name, int layer, std::int64_t rows, std::int64_t columns, double stddev) {
  return {std::move(name), {rows, columns}, layer, true, 0.0, stddev};
}

ParameterSpec constant_vector(std::string name, int layer, std::int64_t size, double value) {
  return {std::move(name), {size}, layer, false, value, 0.0};
}

ParameterSpec with_parts(ParameterSpec spec, std::vector<ParameterPart> parts) {
  spec.parts = std::move(parts);
  return spec;
}

/// Projections back into the residual stream start smaller (GPT-2 report, section 2.3): their 2·layers contributions add
/// up.
double residual_stddev(const Model& m) { return kInitStddev / std::sqrt(2.0 * static_cast<double>(m.layers)); }

std::vector<ParameterSpec> gpt2_before_layers(const Model& m) {
  return {matrix("wte.weight", -1, m.vocab, m.width, kInitStddev),
          matrix("wpe.weight", -1, m.context, m.width, kInitStddev)};
}

/// Matrices are [out, in].
std::vector<ParameterSpec> gpt2_of_layer(const Model& m, int layer) {
  const std::string h = fmt::format("h.{}.", layer);
  return {constant_vector(h + "ln_1.weight", layer, m.width, 1),
          constant_vector(h + "ln_1.bias", layer, m.width, 0),
          matrix(h + "attn.c_attn.weight", layer, m.qkv_width(), m.width, kInitStddev),
          constant_vector(h + "attn.c_attn.bias", layer, m.qkv_width(), 0),
          matrix(h + "attn.c_proj.weight", layer, m.width, m.width, residual_stddev(m)),
          constant_vector(h + "attn.c_proj.bias", layer, m.width, 0),
          constant_vector(h + "ln_2.weight", layer, m.width, 1),
          constant_vector(h + "ln_2.bias", layer, m.width, 0),
          matrix(h + "mlp.c_fc.weight", layer, m.hidden, m.width, kInitStddev),
          constant_vector(h + "mlp.c_fc.bias", layer, m.hidden, 0),
          matrix(h + "mlp.c_proj.weight", layer, m.width, m.hidden, residual_stddev(m)),
          constant_vector(h + "mlp.c_proj.bias", layer, m.width, 0)};
}

std::vector<ParameterSpec> gpt2_after_layers(const Model& m) {
  return {constant_vector("ln_f.weight", -1, m.width, 1), constant_vector("ln_f.bias", -1, m.width, 0)};
}

std::string gpt2_fault(const Model& m) {
  if (m.width % m.heads != 0)
    return fmt::format("width {} is not a multiple of {} heads; choose heads that divide it", m.width, m.heads);
  if (m.head_dim != m.width / m.heads)
    return fmt::format("head_dim is {}, {} heads over width {} have {} each", m.head_dim, m.heads, m.width,
                       m.width / m.heads);
  if (m.kv_heads != m.heads)
    return fmt::format("kv_heads is {}, gpt2 has a key and value head for each of its {} heads", m.kv_heads, m.heads);
  return {};
}

std::vector<ParameterSpec> llama_before_layers(const Model& m) {
  return {matrix("model.embed_tokens.weight", -1, m.vocab, m.width, kInitStddev)};
}

std::vector<ParameterPart> qkv_parts(const Model& m, const std::string& attention, const std::string& kind) {
  const std::int64_t key_rows = checked_product({m.kv_heads, m.head_dim});
  return {{attention + "q_proj." + kind, m.attention_width()},
          {attention + "k_proj." + kind, key_rows},
          {attention + "v_proj." + kind, key_rows}};
}

/// Queries, keys and values are one parameter, gate and up another: one product each and one read of its input.
std::vector<ParameterSpec> llama_of_layer(const Model& m, int layer) {
  const std::string h = fmt::format("model.layers.{}.", layer), attention = h + "self_attn.", mlp = h + "mlp.";
  std::vector<ParameterSpec> specs = {
      constant_vector(h + "input_layernorm.weight", layer, m.width, 1),
      with_parts(matrix(attention + "qkv_proj.weight", layer, m.qkv_width(), m.width, kInitStddev),
                 qkv_parts(m, attention, "weight"))};
  if (m.qkv_bias)
    specs.push_back(with_parts(constant_vector(attention + "qkv_proj.bias", layer, m.qkv_width(), 0),
                               qkv_parts(m, attention, "bias")));
  specs.push_back(matrix(attention + "o_proj.weight", layer, m.width, m.attention_width(), residual_stddev(m)));
  specs.push_back(constant_vector(h + "post_attention_layernorm.weight", layer, m.width, 1));
  specs.push_back(with_parts(
      matrix(mlp + "gate_up_proj.weight", layer, checked_product({2, m.hidden}), m.width, kInitStddev),
      {{mlp + "gate_proj.weight", m.hidden}, {mlp + "up_proj.weight", m.hidden}}));
  specs.push_back(matrix(mlp + "down_proj.weight", layer, m.width, m.hidden, residual_stddev(m)));
  return specs;
}

std::vector<ParameterSpec> llama_after_layers(const Model& m) {
  std::vector<ParameterSpec> specs = {constant_vector("model.norm.weight", -1, m.width, 1)};
  if (!m.tied_head) specs.push_back(matrix("lm_head.weight", -1, m.vocab, m.width, kInitStddev));
  return specs;
}

std::string llama_fault(const Model& m) {
  if (m.heads % m.kv_heads != 0)
    return fmt::format("{} heads are not a multiple of {} kv_heads; choose kv_heads that divide them", m.heads,
                       m.kv_heads);
  if (m.head_dim % 2 != 0)
    return fmt::format("head_dim is {}, rotary positions turn pairs of its elements; choose an even one", m.head_dim);
  if (!(m.rope_theta > 0 && std::isfinite(m.rope_theta)))
    return fmt::format("rope_theta is {}, expected a number above 0 such as 10000", m.rope_theta);
  return {};
}

constexpr Family kFamilies[] = {
    {"gpt2", gpt2_before_layers, gpt2_of_layer, gpt2_after_layers, gpt2_fault},
    {"llama", llama_before_layers, llama_of_layer, llama_after_layers, llama_fault},
};

const Family& family_of(const Model& model) {
  std::vector<std::string_view> names;
  for (const Family& family : kFamilies) {
    if (family.name == model.family) return family;
    names.push_back(family.name);
  }
  throw UsageError(fmt::format("model {}: family '{}' is not supported; supported are {}", model.name, model.family,
                               fmt::join(names, ", ")));
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
  return {.name = std::move(name),
          .layers = layers,
          .width = width,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = width / heads,
          .hidden = 4 * width,
          .vocab = vocab,
          .context = context,
          .tied_head = true,
          .qkv_bias = true};
}

/// A row of the llama family, whose heads share the width.
Model llama(Model model) {
  model.family = "llama";
  model.head_dim = model.width / model.heads;
  return model;
}

/// The two small ones run within a test and within a first look on a laptop.
std::vector<Model> llama_models() {
  return {
      llama({.name = "llama-tiny", .layers = 2, .width = 64, .heads = 4, .kv_heads = 2, .hidden = 160, .vocab = 256,
             .context = 64, .rope_theta = 10000}),
      llama({.name = "llama-10m", .layers = 4, .width = 384, .heads = 6, .kv_heads = 2, .hidden = 1280, .vocab = 8192,
             .context = 1024, .rope_theta = 10000, .tied_head = true}),
      // arXiv 2401.02385
      llama({.name = "tinyllama-1.1b", .layers = 22, .width = 2048, .heads = 32, .kv_heads = 4, .hidden = 5632,
             .vocab = 32000, .context = 2048, .rope_theta = 10000}),
      // arXiv 2307.09288
      llama({.name = "llama-2-7b", .layers = 32, .width = 4096, .heads = 32, .kv_heads = 32, .hidden = 11008,
             .vocab = 32000, .context = 4096, .rope_theta = 10000}),
      llama({.name = "llama-2-13b", .layers = 40, .width = 5120, .heads = 40, .kv_heads = 40, .hidden = 13824,
             .vocab = 32000, .context = 4096, .rope_theta = 10000}),
      llama({.name = "llama-2-70b", .layers = 80, .width = 8192, .heads = 64, .kv_heads = 8, .hidden = 28672,
             .vocab = 32000, .context = 4096, .rope_theta = 10000}),
      // arXiv 2407.21783; the longest context is that of release 3.1
      llama({.name = "llama-3-8b", .layers = 32, .width = 4096, .heads = 32, .kv_heads = 8, .hidden = 14336,
             .vocab = 128256, .context = 8192, .rope_theta = 500000}),
      llama({.name = "llama-3-70b", .layers = 80, .width = 8192, .heads = 64, .kv_heads = 8, .hidden = 28672,
             .vocab = 128256, .context = 8192, .rope_theta = 500000}),
      llama({.name = "llama-3-405b", .layers = 126, .width = 16384, .heads = 128, .kv_heads = 8, .hidden = 53248,
             .vocab = 128256, .context = 131072, .rope_theta = 500000}),
      // arXiv 2310.06825; its attention window bounds the context
      llama({.name = "mistral-7b", .layers = 32, .width = 4096, .heads = 32, .kv_heads = 8, .hidden = 14336,
             .vocab = 32000, .context = 4096, .rope_theta = 10000}),
      // arXiv 2412.15115
      llama({.name = "qwen2.5-7b", .layers = 28, .width = 3584, .heads = 28, .kv_heads = 4, .hidden = 18944,
             .vocab = 152064, .context = 131072, .norm_eps = 1e-6, .rope_theta = 1000000,
             .qkv_bias = true}),
  };
}

}  // namespace

std::int64_t Model::attention_width() const { return checked_product({heads, head_dim}); }

std::int64_t Model::qkv_width() const {
  return checked_product({checked_sum(heads, checked_product({2, kv_heads})), head_dim});
}

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
  static const std::vector<Model> models = [] {
    // OpenAI's four shapes; the two small ones run within a test and within a first look on a laptop.
    std::vector<Model> all = {
        gpt2("gpt2-tiny", 2, 64, 2, 256, 64),         gpt2("gpt2-10m", 4, 384, 6, 8192, 1024),
        gpt2("gpt2-124m", 12, 768, 12, 50257, 1024),  gpt2("gpt2-355m", 24, 1024, 16, 50257, 1024),
        gpt2("gpt2-774m", 36, 1280, 20, 50257, 1024), gpt2("gpt2-1558m", 48, 1600, 25, 50257, 1024),
    };
    const std::vector<Model> more = llama_models();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
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

std::string shape_fault(const Model& m) {
  const std::pair<const char*, std::int64_t> dimensions[] = {
      {"layers", m.layers},     {"width", m.width},   {"heads", m.heads}, {"kv_heads", m.kv_heads},
      {"head_dim", m.head_dim}, {"hidden", m.hidden}, {"vocab", m.vocab}, {"context", m.context}};
  for (const auto& [key, value] : dimensions)
    if (value < 1 || value > kLargestDimension)
      return fmt::format("{} is {}, expected 1 to {}", key, value, kLargestDimension);
  if (m.layers > kMostLayers) return fmt::format("layers is {}, at most {} are supported", m.layers, kMostLayers);
  if (const std::string what = family_of(m).fault(m); !what.empty()) return what;
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

void validate(const Model& model) {
  if (const std::string what = shape_fault(model); !what.empty())
    throw UsageError(fmt::format("model {}: {}", model.name, what));
}

}  // namespace mixroof
