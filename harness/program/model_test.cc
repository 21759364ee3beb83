#include "harness/program/model.h"

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

  /// The config of OpenAI's smallest model with one key set to raw JSON text, or removed when `value` is empty.
  std::filesystem::path gpt2_with(const std::string& key, const std::string& value) {
    std::map<std::string, std::string> keys = {{"model_type", "\"gpt2\""}, {"n_layer", "12"},
                                               {"n_embd", "768"},          {"n_head", "12"},
                                               {"vocab_size", "50257"},    {"n_positions", "1024"}};
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
  const std::map<std::string, std::int64_t> expected = {{"gpt2-tiny", 120576},    {"gpt2-10m", 10637568},
                                                        {"gpt2-124m", 124439808}, {"gpt2-355m", 354823168},
                                                        {"gpt2-774m", 774030080}, {"gpt2-1558m", 1557611200}};
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

TEST(Model, AnUnknownName_IsAnsweredWithNearNames) {
  try {
    find_model("gpt2-124");
    FAIL() << "accepted";
  } catch (const UsageError& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("gpt2-124'"), HasSubstr("gpt2-124m"), HasSubstr("config.json")));
  }
}

TEST(Model, Validate_NamesTheDimensionThatIsWrong) {
  const auto message = [](auto change) -> std::string {
    Model model = find_model("gpt2-tiny");
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
