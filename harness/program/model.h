// Model shapes: named ones (one row of the table in model.cc each) and Hugging Face config.json files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mixroof {

/// GPT-2 family: learned positions, pre-LayerNorm, biases, fused q·k·v, tanh GELU, head tied to the token table.
struct Model {
  std::string name;
  std::string family = "gpt2";
  std::int64_t layers = 0, width = 0, heads = 0, kv_heads = 0, hidden = 0, vocab = 0, context = 0;
  double norm_eps = 1e-5;

  std::int64_t head_dim() const { return width / heads; }
  std::int64_t parameters() const;  // exact, checked
};

struct ParameterSpec {
  std::string name;              // as Hugging Face names it: "h.0.attn.c_attn.weight"
  std::vector<std::int64_t> shape;
  int layer = -1;
  bool is_matrix = false;        // two dimensions: weight decay applies
  double init_mean = 0, init_stddev = 0.02;
};
/// In the order of the oracle and of the optimizer.
std::vector<ParameterSpec> parameter_specs(const Model& model);

std::span<const Model> named_models();
/// A name of the table or a path that ends in .json. Throws UsageError naming file, key, value and remedy.
Model find_model(std::string_view name_or_path);
Model read_model_config(const std::filesystem::path& file);
/// Throws UsageError: heads not dividing the width, a dimension below 1, ….
void validate(const Model& model);

}  // namespace mixroof
