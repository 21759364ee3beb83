// One value of the folder changed: exactly the row that holds it fails and names the place. And what is no oracle at
// all.
#include <gmock/gmock.h>

#include <functional>

#include "harness/execute/oracle_test_support.h"
#include "harness/oracle/oracle_test_folder.h"
#include "harness/status.h"

namespace mixroof {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Alteration {
  const char* name;
  const char* group;
  std::function<void(const AlteredOracle&)> alter;
  const char* item;   // of the row that must fail
  const char* where;  // what its place must name
};

void change(const AlteredOracle& oracle, const char* stem, const char* array, std::int64_t index, int from_top = 0) {
  oracle.change(stem, array, index, from_top);
}

const std::vector<Alteration>& alterations() {
  using O = const AlteredOracle&;
  static const std::vector<Alteration> all = {
      {"OneCode", "formats", [](O o) { change(o, "formats/encode_fp16", "expect", 117); }, "encode_fp16/expect",
       "input_bits[117]"},
      {"OneSaturatedCode", "formats", [](O o) { change(o, "formats/encode_fp8_e5m2", "expect_saturating", 33); },
       "encode_fp8_e5m2/expect_saturating", "input_bits[33]"},
      {"OneDecodedCode", "formats", [](O o) { change(o, "formats/decode", "fp8_e4m3", 61); }, "decode/fp8_e4m3",
       "code 0x3d"},
      {"OneLimit", "formats", [](O o) { o.set("formats/limits", "/formats/fp8_e4m3/min_subnormal", 0.0009765625); },
       "limits/fp8_e4m3", "min_subnormal"},
      {"OneEdge", "formats", [](O o) { o.set("formats/limits", "/formats/fp8_e4m3/least_overflowing_fp32", 464.0); },
       "limits/fp8_e4m3", "least_overflowing_fp32"},
      {"OneDoubleRounding", "formats", [](O o) { o.set("formats/double_rounding", "/cases/5/direct", 3); },
       "double_rounding", "cases[5]"},
      {"OneAbsorbedUpdate", "formats",
       [](O o) { o.set("formats/absorption", "/repeated_updates/1/copy_of_master/6", 1.3); },
       "absorption/repeated_updates", "repeated_updates[1].copy_of_master[6]"},
      {"OneScale", "scaling", [](O o) { o.set("scaling/traces", "/traces/1/scale/20", 99.0); }, "traces/odd_factors",
       "scale[20]"},
      {"OneTracker", "scaling", [](O o) { o.set("scaling/traces", "/traces/2/growth_tracker/9", 7); },
       "traces/saved_and_loaded", "growth_tracker[9] (update 10)"},
      {"TheSavedState", "scaling", [](O o) { o.set("scaling/traces", "/traces/2/state_dict/growth_tracker", 9); },
       "traces/saved_and_loaded", "state_dict.growth_tracker"},
      {"TheFloor", "scaling", [](O o) { o.set("scaling/traces", "/traces/4/floor", 1.0); },
       "traces/stops_at_its_bounds", "scale["},
      {"TheEndOfTheRun", "scaling", [](O o) { o.set("scaling/traces", "/traces/4/ends_run", false); },
       "traces/stops_at_its_bounds", "ends_run"},
      {"OneClock", "scaling", [](O o) { o.set("scaling/clocks", "/after/3/tokens_consumed", 57); }, "clocks",
       "after[3].tokens_consumed"},
      {"OneClockedMoment", "scaling", [](O o) { o.set("scaling/clocks", "/after/4/moment2/1", 0.125); }, "clocks",
       "after[4].moment2[1]"},
      {"OneExample", "scaling", [](O o) { o.set("scaling/examples", "/examples/1/expected/loss", 1.9); },
       "examples/window_of_four", "expected.loss"},
      {"AMistakeThatComesOut", "scaling",
       [](O o) {
         const nlohmann::json right = o.read("scaling/examples").at("/examples/2/expected/clipped"_json_pointer);
         o.set("scaling/examples", "/examples/2/expected/clipped", 1.25);
         o.set("scaling/examples", "/examples/2/wrong/clipped", right);
       },
       "examples/sum_then_clip", "clipped"},
      {"OneMomentOfAdamw", "adamw", [](O o) { change(o, "adamw/adamw", "vector.moment1_f64", 50, 3); }, "vector double",
       "vector.moment1_f64 after update 3[4]"},
      {"OneParameterInFp32", "adamw", [](O o) { change(o, "adamw/adamw", "own_rates.params_f32", 3, 1); },
       "own_rates fp32", "own_rates.params_f32 after update 1[3]"},
      {"OneQuantizedCode", "quantize",
       [](O o) { change(o, "quantize/quantize", "tensor/gauss/fp8_e4m3/exact/codes", 20); }, "tensor/gauss fp8_e4m3",
       "tensor/gauss/fp8_e4m3/exact/codes[20]"},
      {"OneTensorScale", "quantize",
       [](O o) { o.set("quantize/quantize", "/per_tensor/1/exact/scale_bits", 1184711325); }, "tensor/gauss fp8_e5m2",
       "exact.scale"},
      {"OneBlockCode", "quantize", [](O o) { change(o, "quantize/quantize", "block128/fp8_e5m2/exact/codes", 140); },
       "block128/fp8_e5m2/exact", "block128/fp8_e5m2/exact/codes[140]"},
      {"OneBlockScale", "quantize", [](O o) { change(o, "quantize/quantize", "block128/fp8_e4m3/exact/scale", 1, 1); },
       "block128/fp8_e4m3/exact", "block128/fp8_e4m3/exact/scale[1]"},
      {"OneMicroscale", "quantize", [](O o) { change(o, "quantize/quantize", "mxfp8/fp8_e4m3/round_up/e8m0", 4); },
       "mxfp8/fp8_e4m3/round_up", "mxfp8/fp8_e4m3/round_up/e8m0[4]"},
      {"OneDelayedScale", "quantize",
       [](O o) { o.set("quantize/delayed", "/traces/0/steps/3/scale_after_bits", 1110651700); },
       "delayed/traces[0] max fp8_e4m3", "steps[3].scale_after"},
      {"OneKernelGradient", "kernels",
       [](O o) { change(o, "kernels/kernels", "attention/shared_keys/out/d_k", 13, 4); },
       "attention/shared_keys double", "attention/shared_keys/out/d_k[13]"},
      {"OneLoss", "kernels", [](O o) { change(o, "kernels/kernels", "cross_entropy/some_masked/out/loss", 0, 4); },
       "cross_entropy/some_masked double", "cross_entropy/some_masked/out/loss[0]"},
      {"OneGradient", "gpt", [](O o) { change(o, "gpt/tiny_gpt2", "plain/grads/h.1.mlp.c_fc.weight", 77, 3); },
       "tiny_gpt2/plain double", "plain/grads/h.1.mlp.c_fc.weight[77]"},
      {"OneMoment", "gpt",
       [](O o) { change(o, "gpt/tiny_llama", "plain/after2/moment2/layers.0.attention.wk.weight", 5, 1); },
       "tiny_llama/plain double", "plain/after2/moment2/layers.0.attention.wk.weight[5]"},
      {"OneParameter", "gpt", [](O o) { change(o, "gpt/tiny_gpt2", "plain/after2/params/ln_f.bias", 2, 1); },
       "tiny_gpt2/plain double", "plain/after2/params/ln_f.bias[2]"},
      {"OneLogit", "gpt", [](O o) { change(o, "gpt/tiny_llama", "plain/logits", 100, 3); }, "tiny_llama/plain double",
       "plain/logits[100]"},
      {"OneActivation", "gpt", [](O o) { change(o, "gpt/tiny_gpt2", "plain/activations/h.1.after_attention", 9, 3); },
       "tiny_gpt2/plain double", "plain/activations/h.1.after_attention[9]"},
      {"OneWindowLoss", "gpt", [](O o) { o.set("gpt/tiny_gpt2", "/variants/ragged/loss/1", 3.36); },
       "tiny_gpt2/ragged double", "loss[1]"},
      {"TheLossAfterwards", "gpt",
       [](O o) { o.set("gpt/tiny_gpt2", "/variants/steep/loss_on_window_1_after_update_2", 3.0); },
       "tiny_gpt2/steep double", "loss_on_window_1_after_update_2"},
      {"OneClipCoefficient", "gpt", [](O o) { o.set("gpt/tiny_gpt2", "/variants/clipped/clip_coefficient/0", 0.2); },
       "tiny_gpt2/clipped double", "clip_coefficient[0]"},
      {"OneFingerprint", "gpt",
       [](O o) {
         o.set("gpt/tiny_llama", "/variants/documents/fingerprints/grads/layers.0.attention.wv.weight/3", 0.5);
       },
       "tiny_llama/documents double", "layers.0.attention.wv.weight (weighted sum)"},
      {"AYardstickTooSmall", "gpt",
       [](O o) { o.set("gpt/tiny_gpt2", "/variants/plain/yardsticks/bf16_master/grads/l2_rel", 1e-3); },
       "tiny_gpt2/plain bf16-master", "gradient l2_rel"},
      {"AnErrorTooSmallToHaveRounded", "gpt",
       [](O o) { o.set("gpt/tiny_gpt2", "/variants/plain/yardsticks/mxfp8/grads/l2_rel_layer_linears", 0.9); },
       "tiny_gpt2/plain mxfp8", "a smaller error"},
  };
  return all;
}

class Altered : public testing::TestWithParam<std::size_t> {};

TEST_P(Altered, OneValue_FailsItsRowAndNamesThePlace) {
  const Alteration& a = alterations()[GetParam()];
  const AlteredOracle oracle(a.group);
  a.alter(oracle);
  const OracleRun run = run_oracle(oracle.folder(), {a.group});
  ASSERT_EQ(run.failures, 1) << testing::PrintToString(run.with(OracleVerdict::fail).size());
  const OracleRow row = run.with(OracleVerdict::fail).front();
  EXPECT_EQ(row.item, a.item);
  EXPECT_THAT(row.where, HasSubstr(a.where));
  EXPECT_GT(row.worst, row.limit);
}

std::string alteration_name(const testing::TestParamInfo<std::size_t>& tested) {
  return alterations()[tested.param].name;
}

INSTANTIATE_TEST_SUITE_P(Values, Altered, testing::Range(std::size_t{0}, alterations().size()), alteration_name);

// ---- malformed folders

std::string usage_error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}
std::string usage_error_of(const AlteredOracle& oracle) {
  return usage_error_of([&] { run_oracle(oracle.folder()); });
}

TEST(MalformedOracle, NoFolderAndAnEmptyFolder_AreRefused) {
  EXPECT_THAT(usage_error_of([] { run_oracle("/nowhere/at/all"); }),
              AllOf(HasSubstr("/nowhere/at/all"), HasSubstr("no folder")));
  const AlteredOracle empty("");
  EXPECT_THAT(usage_error_of(empty),
              AllOf(HasSubstr(empty.folder()), HasSubstr("nothing to check"), HasSubstr("formats")));
}

TEST(MalformedOracle, AnUnknownGroup_IsRefusedWithTheNearest) {
  EXPECT_THAT(usage_error_of([] { run_oracle(own_oracle(), {"format"}); }),
              AllOf(HasSubstr("format"), HasSubstr("formats")));
}

TEST(MalformedOracle, AMissingKey_IsNamedWithItsFileAndPath) {
  const AlteredOracle oracle("scaling");
  nlohmann::json manifest = oracle.read("scaling/traces");
  manifest.at("traces").at(3).erase("growth_factor");
  oracle.write("scaling/traces", manifest);
  EXPECT_THAT(usage_error_of(oracle),
              AllOf(HasSubstr("scaling/traces.json"), HasSubstr("'traces[3].growth_factor' is missing")));
}

TEST(MalformedOracle, AValueOfAnotherType_IsNamed) {
  const AlteredOracle oracle("adamw");
  oracle.set("adamw/adamw", "/cases/2/beta1", "large");
  EXPECT_THAT(usage_error_of(oracle),
              AllOf(HasSubstr("adamw/adamw.json"), HasSubstr("cases[2].beta1"), HasSubstr("not a number")));
}

TEST(MalformedOracle, ANameWithoutAnArray_IsNamed) {
  const AlteredOracle oracle("adamw");
  oracle.set("adamw/adamw", "/cases/0/name", "renamed");
  EXPECT_THAT(usage_error_of(oracle), AllOf(HasSubstr("adamw/adamw.json"), HasSubstr("'renamed.params0' is missing")));
}

TEST(MalformedOracle, ABinThatIsTooShortOrAbsent_IsNamed) {
  const AlteredOracle oracle("kernels");
  std::filesystem::resize_file(oracle.path("kernels/kernels.bin"), 4000);
  EXPECT_THAT(usage_error_of(oracle),
              AllOf(HasSubstr("kernels/kernels.json"), HasSubstr("array"), HasSubstr("4000 bytes")));
  std::filesystem::remove(oracle.path("kernels/kernels.bin"));
  EXPECT_THAT(usage_error_of(oracle), HasSubstr("kernels/kernels.bin: cannot be opened"));
}

TEST(MalformedOracle, AShapeThatContradictsItsCase_IsNamed) {
  const AlteredOracle oracle("kernels");
  oracle.set("kernels/kernels", "/cases/0/columns", 10);
  EXPECT_THAT(usage_error_of(oracle), AllOf(HasSubstr("kernels/kernels.json"), HasSubstr("layernorm/narrow")));
}

TEST(MalformedOracle, ADimensionOfZero_IsNamed) {
  const AlteredOracle oracle("kernels");
  oracle.set("kernels/kernels", "/cases/4/columns", 0);
  EXPECT_THAT(usage_error_of(oracle), AllOf(HasSubstr("kernels/kernels.json"), HasSubstr("cases[4].columns")));
}

TEST(MalformedOracle, AnIdOutsideItsTable_IsNamed) {
  const AlteredOracle kernels("kernels");
  kernels.change("kernels/kernels", "embedding/small/in/tokens", 3);
  EXPECT_THAT(usage_error_of(kernels),
              AllOf(HasSubstr("kernels/kernels.json"), HasSubstr("embedding/small"), HasSubstr("tokens")));
  const AlteredOracle gpt("gpt");
  gpt.change("gpt/tiny_llama", "data/plain/u2m0/targets", 3);
  EXPECT_THAT(usage_error_of(gpt), AllOf(HasSubstr("gpt/tiny_llama.json"), HasSubstr("data/plain/u2m0/targets")));
}

TEST(MalformedOracle, MicroBatchesOfOtherSizes_AreNamed) {
  const AlteredOracle oracle("gpt");
  oracle.set("gpt/tiny_gpt2", "/arrays/data~1plain~1u2m0~1targets/shape", {2, 8});
  EXPECT_THAT(usage_error_of(oracle), AllOf(HasSubstr("gpt/tiny_gpt2.json"), HasSubstr("data/plain/u2m0/targets")));
}

TEST(MalformedOracle, WhatIsNotJson_IsNamed) {
  const AlteredOracle oracle("gpt");
  std::ofstream(oracle.path("gpt/tiny_gpt2.json")) << "{ \"model\": ";
  EXPECT_THAT(usage_error_of(oracle), AllOf(HasSubstr("gpt/tiny_gpt2.json"), HasSubstr("not JSON")));
}

TEST(MalformedOracle, AModelWithoutItsConfiguration_IsNamed) {
  const AlteredOracle oracle("gpt");
  nlohmann::json manifest = oracle.read("gpt/tiny_llama");
  manifest.at("config").erase("n_head");
  oracle.write("gpt/tiny_llama", manifest);
  EXPECT_THAT(usage_error_of(oracle), AllOf(HasSubstr("gpt/tiny_llama.json"), HasSubstr("n_head")));
}

}  // namespace
}  // namespace mixroof
