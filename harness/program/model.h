// Model shapes: named ones (one row of the table in model.cc each) and Hugging Face config.json files (model_config.cc).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mixroof {

/// Families: "gpt2" (learned positions, pre-LayerNorm, biases, fused q·k·v, tanh GELU, head tied to the token table) and
/// "llama" (rotary positions, RMSNorm, grouped-query attention, SwiGLU, no biases but optionally those of q·k·v: Llama 2 and
/// 3, Mistral, Qwen 2).
struct Model {
  std::string name;
  std::string family = "gpt2";
  std::int64_t layers = 0, width = 0, heads = 0, kv_heads = 0, head_dim = 0, hidden = 0, vocab = 0, context = 0;
  double norm_eps = 1e-5;
  double rope_theta = 0;   // 0: learned positions
  bool tied_head = false;  // the head's weight is the token table
  bool qkv_bias = false;

  // Exact, checked.
  std::int64_t attention_width() const;  // columns of the heads together
  std::int64_t qkv_width() const;        // of queries, then keys, then values
  std::int64_t parameters() const;
};

/// Consecutive rows of a parameter that published files hold under a name of their own.
struct ParameterPart {
  std::string name;
  std::int64_t rows = 0;
};

struct ParameterSpec {
  std::string name;              // as Hugging Face names it: "h.0.attn.c_attn.weight"
  std::vector<std::int64_t> shape;
  int layer = -1;
  bool is_matrix = false;        // two dimensions: weight decay applies
  double init_mean = 0, init_stddev = 0.02;
  std::vector<ParameterPart> parts = {};  // in the order of their rows; empty: a published tensor itself
};
/// In the order of the oracle and of the optimizer.
std::vector<ParameterSpec> parameter_specs(const Model& model);

std::span<const Model> named_models();
/// A name of the table or a path that ends in .json. Throws UsageError naming file, key, value and remedy.
Model find_model(std::string_view name_or_path);
Model read_model_config(const std::filesystem::path& file);
/// The first fault of a model's shape (heads not dividing the width, a dimension below 1, …); empty when it is fine.
std::string shape_fault(const Model& model);
/// Throws UsageError with it.
void validate(const Model& model);

}  // namespace mixroof
