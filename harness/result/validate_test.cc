#include "harness/result/validate.h"

#include <gmock/gmock.h>

#include <functional>
#include <set>

#include "harness/result/read.h"
#include "harness/result/write.h"

namespace mixroof {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kExample = MIXROOF_SOURCE_DIR "/results/schema/examples/complete.json";

std::vector<std::string> faults(const Json& document) {
  std::vector<std::string> texts;
  for (const DocumentFault& fault : validate_document(document)) texts.push_back(fault.text());
  return texts;
}

TEST(Validate, TheExampleIsValidAndInTheWritersFormat) {
  const Json example = read_document(kExample);
  EXPECT_THAT(faults(example), IsEmpty());
  EXPECT_THAT(unknown_keys(example), IsEmpty());
  EXPECT_EQ(document_text(example), read_file(kExample));
}

TEST(Validate, TheExampleHasEveryKeyOfTheSchema) {
  EXPECT_THAT(unused_schema_keys(read_document(kExample)), IsEmpty());
}

TEST(Validate, JSN4_UnknownKeysAreAllowedAndListed) {
  Json document = read_document(kExample);
  document["schema"] = "mixroof/result/1.9";
  document["steps"][0]["new_key"] = 1;
  document["kernels"][0]["time_s"]["p99"] = 1.0;
  EXPECT_THAT(faults(document), IsEmpty());
  EXPECT_THAT(unknown_keys(document), ElementsAre("/kernels/0/time_s/p99", "/steps/0/new_key"));
}

TEST(Validate, AReasonBesideANullIsNoUnknownKey) {
  Json document = read_document(kExample);
  document["steps"][0]["floor_s"] = nullptr;
  document["steps"][0]["floor_s_reason"] = "no ceilings";
  EXPECT_THAT(faults(document), IsEmpty());
  EXPECT_THAT(unknown_keys(document), IsEmpty());
}

/// One break of a valid document, where it has to be reported, and a word of the message.
struct Break {
  const char* name;
  std::function<void(Json&)> apply;
  const char* pointer;
  const char* what;
};

const std::vector<Break>& breaks() {
  static const std::vector<Break> all = {
      {"schema of another major", [](Json& d) { d["schema"] = "mixroof/result/2.0"; }, "/schema", "regex"},
      {"no steps", [](Json& d) { d.erase("steps"); }, "", "steps"},
      {"run status outside its list", [](Json& d) { d["run"]["status"] = "done"; }, "/run/status", "enum"},
      {"local time", [](Json& d) { d["run"]["started"] = "2026-01-15 10:00"; }, "/run/started", "regex"},
      {"seed as text", [](Json& d) { d["run"]["seed"] = "1"; }, "/run/seed", "type"},
      {"memory as fraction", [](Json& d) { d["host"]["memory_bytes"] = 1.5; }, "/host/memory_bytes", "type"},
      {"negative memory", [](Json& d) { d["host"]["memory_bytes"] = -1; }, "/host/memory_bytes", "greater"},
      {"check without ok", [](Json& d) { d["environment"][0].erase("ok"); }, "/environment/0", "ok"},
      {"ceiling in another unit", [](Json& d) { d["ceilings"][0]["unit"] = "GB/s"; }, "/ceilings/0/unit", "enum"},
      {"promise without source",
       [](Json& d) {
         d["ceilings"][0]["promised"] = {{"value", 1e12}};
       },
       "/ceilings/0/promised", "source"},
      {"promise of zero",
       [](Json& d) {
         d["ceilings"][0]["promised"] = {{"value", 0}, {"source", "s"}};
       },
       "/ceilings/0/promised/value", "greater"},
      {"status outside the closed list", [](Json& d) { d["steps"][0]["status"] = "fine"; }, "/steps/0/status", "enum"},
      {"failure without reason", [](Json& d) { d["steps"][0]["status"] = "failed"; }, "/steps/0/reason", "type"},
      {"failure with an empty reason",
       [](Json& d) {
         d["kernels"][0]["status"] = "failed";
         d["kernels"][0]["reason"] = "";
       },
       "/kernels/0/reason", "characters"},
      {"ok without a time", [](Json& d) { d["steps"][0]["time_s"] = nullptr; }, "/steps/0/time_s", "type"},
      {"incorrect step with a rate",
       [](Json& d) {
         d["steps"][0]["status"] = "incorrect";
         d["steps"][0]["reason"] = "gradients differ";
         d["steps"][0]["mfu"] = nullptr;
         d["steps"][0]["speedup_vs_fp32"] = nullptr;
         d["steps"][0]["floor_fraction"] = nullptr;
       },
       "/steps/0/tokens_per_s", "type"},
      {"incorrect kernel with a fraction",
       [](Json& d) {
         d["kernels"][0]["status"] = "incorrect";
         d["kernels"][0]["reason"] = "element 3 differs";
       },
       "/kernels/0/roof/fraction", "type"},
      {"flops of a format as text", [](Json& d) { d["kernels"][0]["flops"]["useful"]["fp32"] = "2"; },
       "/kernels/0/flops/useful/fp32", "type"},
      {"summary without samples key", [](Json& d) { d["steps"][0]["time_s"].erase("samples"); }, "/steps/0/time_s",
       "samples"},
      {"fewer samples than n", [](Json& d) { d["steps"][0]["time_s"]["samples"].erase(0); }, "/steps/0/time_s",
       "n is 5 but there are 4 samples"},
      {"median above the maximum", [](Json& d) { d["kernels"][0]["time_s"]["max"] = 0; }, "/kernels/0/time_s",
       "is above max"},
      {"sample below the minimum", [](Json& d) { d["steps"][0]["time_s"]["samples"][2] = 1e-6; }, "/steps/0/time_s",
       "outside [min, max]"},
      {"clocks that do not add up", [](Json& d) { d["steps"][0]["clocks"]["updates_skipped"] = 3; }, "/steps/0/clocks",
       "attempted"},
      {"unequal effective tokens", [](Json& d) { d["steps"][1]["effective_tokens_per_update"] = 1; },
       "/steps/1/effective_tokens_per_update", "the workload has"},
      {"a recipe twice", [](Json& d) { d["steps"][1]["recipe"] = d["steps"][0]["recipe"]; }, "/steps/1", "second row"},
      {"roof of a ceiling that is not there", [](Json& d) { d["kernels"][0]["roof"]["ceiling_ids"][0] = "nowhere"; },
       "/kernels/0/roof", "nowhere"},
      {"degraded without a reason", [](Json& d) { d["steps"][0]["numerics"]["verdict"] = "degraded"; },
       "/steps/0/numerics", "without a reason"},
  };
  return all;
}

TEST(Validate, EachBrokenDocumentIsReportedAtItsPlace) {
  const Json example = read_document(kExample);
  for (const Break& broken : breaks()) {
    Json document = example;
    broken.apply(document);
    bool reported = false;
    std::string all;
    for (const DocumentFault& fault : validate_document(document)) {
      reported |= fault.pointer == broken.pointer && fault.what.find(broken.what) != std::string::npos;
      all += fault.text() + "\n";
    }
    EXPECT_TRUE(reported) << broken.name << " was reported as:\n" << all;
  }
}

TEST(Validate, OneFaultIsOneLineWithWhatWasFound) {
  Json document = read_document(kExample);
  document["steps"][0]["status"] = "failed";
  EXPECT_THAT(faults(document),
              ElementsAre("/steps/0/reason: Value type not permitted by 'type' constraint. Found null"));
  document = read_document(kExample);
  document["kernels"][0].erase("time_s");
  EXPECT_THAT(faults(document), ElementsAre(HasSubstr("/kernels/0: Missing required property 'time_s'.")));
}

TEST(Validate, WrongTypesEverywhereAreReportedAndNeverCrash) {
  const std::vector<Json> wrong = {
      nullptr, true, 1, -1.5, "x", Json::array(), Json::object(), Json::array({1, nullptr, "x"})};
  const Json example = read_document(kExample);
  // Every container and every leaf; rows after the first repeat the same keys.
  std::set<std::string> places;
  const Json flat = example.flatten();
  for (const auto& [pointer, leaf] : flat.items())
    for (Json::json_pointer place(pointer); !place.empty(); place.pop_back()) places.insert(place.to_string());
  std::erase_if(places, [](const std::string& place) { return place.find("/1") != std::string::npos; });
  std::size_t next = 0;
  for (const std::string& place : places) {
    Json document = example;
    document[Json::json_pointer(place)] = wrong[next++ % wrong.size()];
    validate_document(document);
    unknown_keys(document);
  }
  for (const Json& document : wrong) EXPECT_THAT(faults(document), testing::Not(IsEmpty()));
}

}  // namespace
}  // namespace mixroof
