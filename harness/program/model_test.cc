#include "harness/program/model.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "harness/status.h"

namespace mixroof {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// A file in the test's own folder, removed with it.
class ModelFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              (std::string("mixroof_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& text, const std::string& name = "config.json") {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }

  /// The message of the refusal; empty when the file was accepted.
  static std::string refusal(const std::filesystem::path& file) {
    try {
      read_model_config(file);
    } catch (const UsageError& e) {
      return e.what();
    }
    return {};
  }

  using Keys = std::map<std::string, std::string>;  // values are raw JSON text

  /// The config of OpenAI's smallest model with one key set, or removed when `value` is empty.
  std::filesystem::path gpt2_with(const std::string& key, const std::string& value) {
    return write_with({{"model_type", "\"gpt2\""},
                       {"n_layer", "12"},
                       {"n_embd", "768"},
                       {"n_head", "12"},
                       {"vocab_size", "50257"},
                       {"n_positions", "1024"}},
                      key, value);
  }

  /// What Llama 3 8B was published with, apart from its rotary scaling.
  static Keys llama_keys() {
    return {{"model_type", "\"llama\""},
            {"hidden_size", "4096"},
            {"intermediate_size", "14336"},
            {"num_hidden_layers", "32"},
            {"num_attention_heads", "32"},
            {"num_key_value_heads", "8"},
            {"vocab_size", "128256"},
            {"max_position_embeddings", "8192"},
            {"rms_norm_eps", "1e-05"},
            {"rope_theta", "500000.0"},
            {"rope_scaling", "null"},
            {"hidden_act", "\"silu\""},
            {"attention_bias", "false"},
            {"tie_word_embeddings", "false"},
            {"torch_dtype", "\"bfloat16\""}};
  }
  std::filesystem::path llama_with(const std::string& key, const std::string& value) {
    return write_with(llama_keys(), key, value);
  }

  std::filesystem::path write_with(Keys keys, const std::string& key, const std::string& value) {
    if (value.empty())
      keys.erase(key);
    else
      keys[key] = value;
    std::string text;
    for (const auto& [k, v] : keys) text += (text.empty() ? "{\"" : ", \"") + k + "\": " + v;
    return write(text + "}");
  }

  std::filesystem::path folder_;
};

TEST(Model, NamedModels_HaveTheExactNumberOfParameters) {
  // vocab·C + context·C + layers·(12·C² + 13·C) + 2·C: per layer the matrices hold 3C² + C² + 4C² + 4C², the biases
  // 3C + C + 4C + C and the two norms 4C.
  // The others: (1 or 2)·vocab·C + C + layers·(C·((heads + 2·kv)·d) + heads·d·C + 3·C·hidden + 2·C), with q·k·v biases
  // (heads + 2·kv)·d more a layer; the published totals.
  const std::map<std::string, std::int64_t> expected = {
      {"gpt2-tiny", 120576},          {"gpt2-10m", 10637568},        {"gpt2-124m", 124439808},
      {"gpt2-355m", 354823168},       {"gpt2-774m", 774030080},      {"gpt2-1558m", 1557611200},
      {"llama-tiny", 119104},         {"llama-10m", 10620288},       {"tinyllama-1.1b", 1100048384},
      {"llama-2-7b", 6738415616},     {"llama-2-13b", 13015864320},  {"llama-2-70b", 68976648192},
      {"llama-3-8b", 8030261248},     {"llama-3-70b", 70553706496},  {"llama-3-405b", 405853388800},
      {"mistral-7b", 7241732096},     {"qwen2.5-7b", 7615616512}};
  ASSERT_EQ(named_models().size(), expected.size());
  for (const Model& model : named_models()) {
    EXPECT_EQ(model.parameters(), expected.at(model.name)) << model.name;
    EXPECT_NO_THROW(validate(model)) << model.name;
    EXPECT_EQ(find_model(model.name).width, model.width);
  }
}

TEST(Model, ParameterSpecs_FollowTheOrderAndSumToTheCount) {
  const Model model = find_model("gpt2-tiny");
  const std::vector<ParameterSpec> specs = parameter_specs(model);
  std::vector<std::string> names;
  std::int64_t total = 0;
  for (const ParameterSpec& spec : specs) {
    names.push_back(spec.name);
    EXPECT_EQ(spec.is_matrix, spec.shape.size() == 2) << spec.name;
    total += spec.shape[0] * (spec.is_matrix ? spec.shape[1] : 1);
  }
  EXPECT_EQ(total, model.parameters());
  EXPECT_THAT(names, ::testing::ElementsAre(
                         "wte.weight", "wpe.weight", "h.0.ln_1.weight", "h.0.ln_1.bias", "h.0.attn.c_attn.weight",
                         "h.0.attn.c_attn.bias", "h.0.attn.c_proj.weight", "h.0.attn.c_proj.bias", "h.0.ln_2.weight",
                         "h.0.ln_2.bias", "h.0.mlp.c_fc.weight", "h.0.mlp.c_fc.bias", "h.0.mlp.c_proj.weight",
                         "h.0.mlp.c_proj.bias", "h.1.ln_1.weight", "h.1.ln_1.bias", "h.1.attn.c_attn.weight",
                         "h.1.attn.c_attn.bias", "h.1.attn.c_proj.weight", "h.1.attn.c_proj.bias", "h.1.ln_2.weight",
                         "h.1.ln_2.bias", "h.1.mlp.c_fc.weight", "h.1.mlp.c_fc.bias", "h.1.mlp.c_proj.weight",
                         "h.1.mlp.c_proj.bias", "ln_f.weight", "ln_f.bias"));
}

TEST(Model, ParameterSpecs_InitialisationShrinksResidualProjectionsOnly) {
  for (const ParameterSpec& spec : parameter_specs(find_model("gpt2-tiny"))) {
    const bool into_residual = spec.name.ends_with("c_proj.weight");
    const bool gain = spec.name.find("ln_") != std::string::npos && spec.name.ends_with("weight");
    EXPECT_EQ(spec.init_mean, gain ? 1.0 : 0.0) << spec.name;
    // two layers: 0.02 / sqrt(2·2) = 0.01
    EXPECT_DOUBLE_EQ(spec.init_stddev, !spec.is_matrix ? 0.0 : into_residual ? 0.01 : 0.02) << spec.name;
    EXPECT_EQ(spec.layer, spec.name.starts_with("h.") ? spec.name[2] - '0' : -1) << spec.name;
  }
}

TEST(Model, ParameterSpecs_MatricesAreOutTimesIn) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const ParameterSpec& spec : parameter_specs(find_model("gpt2-124m"))) shapes[spec.name] = spec.shape;
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(shapes["wte.weight"], (Shape{50257, 768}));
  EXPECT_EQ(shapes["wpe.weight"], (Shape{1024, 768}));
  EXPECT_EQ(shapes["h.11.attn.c_attn.weight"], (Shape{2304, 768}));
  EXPECT_EQ(shapes["h.11.mlp.c_fc.weight"], (Shape{3072, 768}));
  EXPECT_EQ(shapes["h.11.mlp.c_proj.weight"], (Shape{768, 3072}));
  EXPECT_EQ(shapes["h.11.mlp.c_fc.bias"], (Shape{3072}));
}

TEST(Model, LlamaParameters_AreFusedAndNameTheirParts) {
  Model model = find_model("llama-tiny");  // 4 heads and 2 key/value heads of 16, hidden 160
  model.qkv_bias = true;
  std::vector<std::string> names, parts;
  std::map<std::string, ParameterSpec> by_name;
  for (const ParameterSpec& spec : parameter_specs(model)) {
    if (spec.layer > 0) continue;
    names.push_back(spec.name);
    by_name[spec.name] = spec;
    std::int64_t rows = 0;
    for (const ParameterPart& part : spec.parts) {
      parts.push_back(fmt::format("{} {}", part.name, part.rows));
      rows += part.rows;
    }
    EXPECT_TRUE(spec.parts.empty() || rows == spec.shape[0]) << spec.name;
  }
  EXPECT_THAT(names, ::testing::ElementsAre(
                         "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
                         "model.layers.0.self_attn.qkv_proj.weight", "model.layers.0.self_attn.qkv_proj.bias",
                         "model.layers.0.self_attn.o_proj.weight", "model.layers.0.post_attention_layernorm.weight",
                         "model.layers.0.mlp.gate_up_proj.weight", "model.layers.0.mlp.down_proj.weight",
                         "model.norm.weight", "lm_head.weight"));
  EXPECT_THAT(parts, ::testing::ElementsAre(
                         "model.layers.0.self_attn.q_proj.weight 64", "model.layers.0.self_attn.k_proj.weight 32",
                         "model.layers.0.self_attn.v_proj.weight 32", "model.layers.0.self_attn.q_proj.bias 64",
                         "model.layers.0.self_attn.k_proj.bias 32", "model.layers.0.self_attn.v_proj.bias 32",
                         "model.layers.0.mlp.gate_proj.weight 160", "model.layers.0.mlp.up_proj.weight 160"));
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(by_name["model.layers.0.self_attn.qkv_proj.weight"].shape, (Shape{128, 64}));
  EXPECT_EQ(by_name["model.layers.0.mlp.gate_up_proj.weight"].shape, (Shape{320, 64}));
  EXPECT_EQ(by_name["model.layers.0.mlp.down_proj.weight"].shape, (Shape{64, 160}));
  // two layers: 0.02 / sqrt(2·2) = 0.01 into the residual stream
  EXPECT_DOUBLE_EQ(by_name["model.layers.0.mlp.down_proj.weight"].init_stddev, 0.01);
  EXPECT_DOUBLE_EQ(by_name["model.layers.0.self_attn.o_proj.weight"].init_stddev, 0.01);
  EXPECT_DOUBLE_EQ(by_name["model.layers.0.mlp.gate_up_proj.weight"].init_stddev, 0.02);
  EXPECT_EQ(by_name["model.norm.weight"].init_mean, 1);
  EXPECT_EQ(by_name["model.layers.0.self_attn.qkv_proj.bias"].init_mean, 0);
}

TEST(Model, AHeadWidthOfItsOwn_NeedNotDivideTheWidth) {
  Model model = find_model("llama-tiny");
  model.head_dim = 24;  // 4·24 = 96 columns of attention over a width of 64
  EXPECT_NO_THROW(validate(model));
  EXPECT_EQ(model.attention_width(), 96);
  EXPECT_EQ(model.qkv_width(), (4 + 2 * 2) * 24);
}

TEST(Model, AnUnknownName_IsAnsweredWithNearNames) {
  try {
    find_model("gpt2-124");
    FAIL() << "accepted";
  } catch (const UsageError& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("gpt2-124'"), HasSubstr("gpt2-124m"), HasSubstr("config.json")));
  }
}

TEST(Model, Validate_NamesTheDimensionThatIsWrong) {
  const auto message = [](auto change, const char* name = "gpt2-tiny") -> std::string {
    Model model = find_model(name);
    change(model);
    try {
      validate(model);
    } catch (const UsageError& e) {
      return e.what();
    }
    return {};
  };
  EXPECT_THAT(message([](Model& m) { m.heads = 3; }), AllOf(HasSubstr("width 64"), HasSubstr("3 heads")));
  EXPECT_THAT(message([](Model& m) { m.kv_heads = 0; }), HasSubstr("kv_heads is 0"));
  EXPECT_THAT(message([](Model& m) { m.kv_heads = 1; }), HasSubstr("kv_heads is 1"));
  EXPECT_THAT(message([](Model& m) { m.head_dim = 16; }), AllOf(HasSubstr("head_dim is 16"), HasSubstr("32 each")));
  EXPECT_THAT(message([](Model& m) { m.kv_heads = 3; }, "llama-tiny"), HasSubstr("multiple of 3 kv_heads"));
  EXPECT_THAT(message([](Model& m) { m.head_dim = 15; }, "llama-tiny"), HasSubstr("head_dim is 15"));
  EXPECT_THAT(message([](Model& m) { m.rope_theta = 0; }, "llama-tiny"), HasSubstr("rope_theta is 0"));
  EXPECT_THAT(message([](Model& m) { m.head_dim = m.heads = m.kv_heads = 2147483646; }, "llama-tiny"),
              HasSubstr("passes 2^63 - 1"));
  EXPECT_THAT(message([](Model& m) { m.vocab = -5; }), HasSubstr("vocab is -5"));
  EXPECT_THAT(message([](Model& m) { m.layers = 100000; }), HasSubstr("layers is 100000"));
  EXPECT_THAT(message([](Model& m) { m.norm_eps = std::nan(""); }), HasSubstr("norm_eps is nan"));
  EXPECT_THAT(message([](Model& m) { m.family = "gpt9"; }), AllOf(HasSubstr("gpt9"), HasSubstr("gpt2")));
}

TEST_F(ModelFile, OpenAisSmallestConfig_GivesTheNamedModel) {
  const Model read = read_model_config(gpt2_with("n_inner", "null"));
  const Model named = find_model("gpt2-124m");
  EXPECT_EQ(read.parameters(), 124439808);
  EXPECT_EQ(read.family, "gpt2");
  EXPECT_EQ(read.hidden, named.hidden);
  EXPECT_EQ(read.kv_heads, 12);
  EXPECT_EQ(read.norm_eps, 1e-5);
  EXPECT_EQ(read.name, folder_.filename().string());  // config.json is called by its folder
  EXPECT_EQ(find_model((folder_ / "config.json").string()).width, 768);
}

TEST_F(ModelFile, OptionalKeys_AreRead) {
  EXPECT_EQ(read_model_config(gpt2_with("n_inner", "1000")).hidden, 1000);
  EXPECT_EQ(read_model_config(gpt2_with("layer_norm_epsilon", "1e-6")).norm_eps, 1e-6);
  EXPECT_EQ(read_model_config(gpt2_with("activation_function", "\"gelu_pytorch_tanh\"")).width, 768);
  const auto with_n_ctx = write(R"({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 9,
                                    "n_ctx": 33})",
                                "small.json");
  EXPECT_EQ(read_model_config(with_n_ctx).context, 33);
  EXPECT_EQ(read_model_config(with_n_ctx).name, "small");
}

TEST_F(ModelFile, EveryFault_NamesFileKeyValueAndRemedy) {
  struct Fault {
    const char* key;
    const char* value;
    const char* says;
  };
  const Fault faults[] = {
      {"n_layer", "", "\"n_layer\" is missing"},
      {"n_positions", "", "\"n_positions\" is missing"},
      {"vocab_size", "null", "\"vocab_size\" is missing"},
      {"n_embd", "768.5", "\"n_embd\" is 768.5"},
      {"n_embd", "\"768\"", "\"n_embd\" is \"768\""},
      {"n_embd", "[768]", "\"n_embd\" is an array"},
      {"n_layer", "0", "\"n_layer\" is 0"},
      {"n_layer", "-12", "\"n_layer\" is -12"},
      {"n_layer", "100000", "layers is 100000"},
      {"vocab_size", "2147483648", "\"vocab_size\" is 2147483648"},
      {"vocab_size", "18446744073709551615", "\"vocab_size\" is 18446744073709551615"},
      {"vocab_size", "1e400", "is not JSON"},
      {"n_inner", "0", "\"n_inner\" is 0"},
      {"n_head", "7", "width 768 is not a multiple of 7 heads"},
      {"layer_norm_epsilon", "0", "\"layer_norm_epsilon\" is 0"},
      {"layer_norm_epsilon", "\"small\"", "\"layer_norm_epsilon\" is \"small\""},
      {"activation_function", "\"relu\"", "\"activation_function\" is \"relu\""},
      {"activation_function", "3", "\"activation_function\" is 3"},
      {"tie_word_embeddings", "false", "\"tie_word_embeddings\" is false"},
      {"scale_attn_by_inverse_layer_idx", "true", "\"scale_attn_by_inverse_layer_idx\" is true"},
      {"model_type", "", "\"model_type\" is missing"},
      {"model_type", "\"gpt_neo\"", "\"model_type\" is \"gpt_neo\""},
      {"model_type", "17", "\"model_type\" is 17"},
  };
  for (const Fault& fault : faults) {
    const auto file = gpt2_with(fault.key, fault.value);
    EXPECT_THAT(refusal(file), AllOf(HasSubstr(file.string()), HasSubstr(fault.says), Not(HasSubstr("\n"))))
        << fault.key << " = " << fault.value;
  }
}

TEST_F(ModelFile, Llama3Config_GivesTheNamedModel) {
  Model read = read_model_config(llama_with("pretraining_tp", "1"));
  const Model named = find_model("llama-3-8b");
  read.name = named.name;
  EXPECT_EQ(read.parameters(), 8030261248);
  EXPECT_EQ(parameter_specs(read).size(), parameter_specs(named).size());
  EXPECT_EQ(read.head_dim, 128);
  EXPECT_EQ(read.kv_heads, 8);
  EXPECT_EQ(read.context, 8192);
  EXPECT_EQ(read.rope_theta, 500000);
  EXPECT_EQ(read.norm_eps, 1e-5);
  EXPECT_FALSE(read.tied_head);
  EXPECT_FALSE(read.qkv_bias);
}

TEST_F(ModelFile, LlamaDefaults_AreHuggingFaces) {
  EXPECT_EQ(read_model_config(llama_with("num_key_value_heads", "")).kv_heads, 32);
  EXPECT_EQ(read_model_config(llama_with("rms_norm_eps", "")).norm_eps, 1e-6);
  EXPECT_EQ(read_model_config(llama_with("rope_theta", "")).rope_theta, 10000);
  EXPECT_TRUE(read_model_config(llama_with("tie_word_embeddings", "true")).tied_head);
  EXPECT_EQ(read_model_config(llama_with("head_dim", "64")).qkv_width(), (32 + 16) * 64);
  EXPECT_EQ(read_model_config(llama_with("head_dim", "null")).head_dim, 128);
  EXPECT_EQ(read_model_config(llama_with("sliding_window", "16")).context, 8192);  // the type has none
}

TEST_F(ModelFile, RotaryThetaIsFound_WhereNewerFilesKeepIt) {
  Keys keys = llama_keys();
  keys.erase("rope_theta");
  const auto theta = [&](const char* value) {
    return read_model_config(write_with(keys, "rope_parameters", value)).rope_theta;
  };
  EXPECT_EQ(theta(R"({"rope_theta": 1000000.0, "rope_type": "default"})"), 1000000);
  EXPECT_EQ(theta(R"({"rope_theta": 5000})"), 5000);
  EXPECT_EQ(read_model_config(llama_with("rope_scaling", R"({"rope_type": "default"})")).rope_theta, 500000);
}

TEST_F(ModelFile, AttentionWindows_BoundTheContextWhereTheyAreInUse) {
  Keys mistral = llama_keys();
  mistral["model_type"] = "\"mistral\"";
  mistral["max_position_embeddings"] = "32768";
  EXPECT_EQ(read_model_config(write_with(mistral, "sliding_window", "4096")).context, 4096);
  EXPECT_EQ(read_model_config(write_with(mistral, "sliding_window", "null")).context, 32768);
  Keys qwen = mistral;
  qwen["model_type"] = "\"qwen2\"";
  qwen["attention_bias"] = "true";
  qwen["sliding_window"] = "4096";
  EXPECT_EQ(read_model_config(write_with(qwen, "use_sliding_window", "false")).context, 32768);
  EXPECT_EQ(read_model_config(write_with(qwen, "use_sliding_window", "true")).context, 4096);
}

TEST_F(ModelFile, Qwen2Config_HasBiasesOfQueriesKeysAndValues) {
  const auto file = write(R"({"model_type": "qwen2", "hidden_act": "silu", "hidden_size": 3584,
    "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28, "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 131072, "tie_word_embeddings": false, "use_mrope": false, "use_sliding_window": false,
    "vocab_size": 152064})");
  const Model read = read_model_config(file);
  EXPECT_TRUE(read.qkv_bias);
  EXPECT_EQ(read.parameters(), find_model("qwen2.5-7b").parameters());
}

TEST_F(ModelFile, EveryFaultOfALlamaConfig_NamesFileKeyValueAndRemedy) {
  struct Fault {
    const char* key;
    const char* value;
    const char* says;
  };
  const Fault faults[] = {
      {"hidden_size", "", "\"hidden_size\" is missing"},
      {"intermediate_size", "", "\"intermediate_size\" is missing"},
      {"num_hidden_layers", "0", "\"num_hidden_layers\" is 0"},
      {"num_attention_heads", "\"32\"", "\"num_attention_heads\" is \"32\""},
      {"num_attention_heads", "24", "width 4096 is not a multiple of 24 heads"},
      {"num_key_value_heads", "5", "32 heads are not a multiple of 5 kv_heads"},
      {"head_dim", "127", "head_dim is 127"},
      {"head_dim", "-1", "\"head_dim\" is -1"},
      {"hidden_act", "\"gelu\"", "\"hidden_act\" is \"gelu\""},
      {"rms_norm_eps", "2", "\"rms_norm_eps\" is 2"},
      {"rope_theta", "0", "\"rope_theta\" is 0"},
      {"rope_theta", "\"big\"", "\"rope_theta\" is \"big\""},
      {"rope_scaling", R"({"rope_type": "llama3", "factor": 8.0})", "\"rope_scaling\" of type llama3"},
      {"rope_scaling", R"({"type": "linear", "factor": 2.0})", "remove the key"},
      {"rope_scaling", "8", "\"rope_scaling\" is 8"},
      {"rope_parameters", R"({"rope_type": "yarn"})", "\"rope_parameters\" of type yarn"},
      {"attention_bias", "true", "\"attention_bias\" is true"},
      {"mlp_bias", "true", "\"mlp_bias\" is true"},
      {"tie_word_embeddings", "1", "\"tie_word_embeddings\" is 1"},
      {"max_position_embeddings", "", "\"max_position_embeddings\" is missing"},
      {"model_type", "\"llama4\"", "nearest supported: llama"},
  };
  for (const Fault& fault : faults) {
    const auto file = llama_with(fault.key, fault.value);
    EXPECT_THAT(refusal(file), AllOf(HasSubstr(file.string()), HasSubstr(fault.says), Not(HasSubstr("\n"))))
        << fault.key << " = " << fault.value;
  }
}

TEST_F(ModelFile, AParameterCountPast64Bits_IsRefused) {
  // 3·2147483647² alone is 1.4e19, more than 2^63 - 1 = 9.2e18
  EXPECT_THAT(refusal(write(R"({"model_type": "gpt2", "n_layer": 1, "n_embd": 2147483647, "n_head": 1, "vocab_size": 2,
                               "n_positions": 2, "n_inner": 2})")),
              HasSubstr("passes 2^63 - 1"));
}

TEST_F(ModelFile, FilesThatAreNoConfig_AreRefused) {
  EXPECT_THAT(refusal(folder_ / "absent.json"), AllOf(HasSubstr("absent.json"), HasSubstr("no such file")));
  EXPECT_THAT(refusal(folder_), HasSubstr("is not a file"));
  EXPECT_THAT(refusal(write("")), HasSubstr("is not JSON"));
  EXPECT_THAT(refusal(write("{\"model_type\": \"gpt2\",")), HasSubstr("is not JSON"));
  EXPECT_THAT(refusal(write("[1, 2]")), HasSubstr("an array instead of an object"));
}

}  // namespace
}  // namespace mixroof
