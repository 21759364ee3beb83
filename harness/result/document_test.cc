#include "harness/result/document.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <locale>

#include "harness/result/read.h"
#include "harness/result/validate.h"
#include "harness/result/write.h"

namespace mixroof {
namespace {

using testing::HasSubstr;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string parse_failure(const std::string& text) {
  try {
    parse_json(text, "r.json");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

/// A document with one ceiling, made as a program makes it.
Document small_document() {
  Document document;
  document.set("run", {{"id", "example"},
                       {"started", utc_text(1768471200)},
                       {"wall_s", nullptr},
                       {"command", {"mixroof", "run", "--parts", "ceilings"}},
                       {"status", nullptr},
                       {"seed", 1}});
  document.set("tool", {{"version", "0.1.0"},
                        {"commit", nullptr},
                        {"commit_reason", "built outside a checkout"},
                        {"compiler", "gcc 12.2.0"},
                        {"flags", "-O3"},
                        {"libraries", {{"fmt", "9.1.0"}}}});
  document.set(
      "host",
      {{"os", "Linux"}, {"kernel", "Linux 6.1.0"}, {"cpu", "example"}, {"cores_online", 2}, {"memory_bytes", 1 << 30}});
  document.set("device", {{"backend", "cpu"},
                          {"name", "example"},
                          {"arch", "x86-64 avx2"},
                          {"memory_bytes", 1 << 30},
                          {"catalog", nullptr}});
  document.put_environment({{"check", "cpu governor"}, {"ok", true}, {"value", "unknown"}, {"detail", "no cpufreq"}});
  document.put_ceiling({{"id", "dram/copy"},
                        {"kind", "bandwidth"},
                        {"path", nullptr},
                        {"level", "dram"},
                        {"mix", "copy"},
                        {"shape", {{"bytes", 268435456}}},
                        {"sustained", false},
                        {"unit", "byte_per_s"},
                        // Sorted 20e9, 21e9, 22.5e9: median 21e9, min and max as interval.
                        {"measured", stat_to_json(summarize(std::vector<double>{21e9, 20e9, 22.5e9}))},
                        {"promised", nullptr},
                        {"implementation", "stream/avx2"}});
  return document;
}

TEST(Document, ItsTextIsTheGoldenFile) {
  Document document = small_document();
  document.finish(RunStatus::complete, 12.5);
  EXPECT_EQ(document_text(document.json()), read_file(MIXROOF_SOURCE_DIR "/harness/result/testdata/ceiling.json"));
  EXPECT_THAT(validate_document(document.json()), testing::IsEmpty());
}

TEST(Document, TextReadsBackEqual) {
  Json document = small_document().json();
  document["numbers"] = {0.1,  1e-300,   5e-324,           1.7976931348623157e308,
                         -0.0, 86400000, 9007199254740993, 18446744073709551615u};
  EXPECT_EQ(parse_json(document_text(document), "r.json"), document);
}

TEST(Document, SectionsStandInTheOrderOfTheContract) {
  std::vector<std::string> keys;
  const Document document;
  for (const auto& [key, value] : document.json().items()) keys.push_back(key);
  EXPECT_THAT(keys, testing::ElementsAre("schema", "run", "tool", "host", "device", "environment", "workload",
                                         "ceilings", "kernels", "steps"));
}

TEST(Document, SaysInterruptedUntilItIsFinished) {
  Document document = small_document();
  EXPECT_EQ(document.json()["run"]["status"], "interrupted");
  document.finish(RunStatus::complete, 1.0);
  EXPECT_EQ(document.json()["run"]["status"], "complete");
  EXPECT_EQ(Document::resume(document.json()).json()["run"]["status"], "interrupted");
}

TEST(Document, ARowWithTheSameIdentityIsReplacedInPlace) {
  Document document;
  document.put_step({{"recipe", "fp32"}, {"status", "skipped"}});
  document.put_step({{"recipe", "bf16-master"}, {"status", "ok"}});
  document.put_step({{"recipe", "fp32"}, {"status", "ok"}});
  ASSERT_EQ(document.json()["steps"].size(), 2u);
  EXPECT_EQ(document.json()["steps"][0]["status"], "ok");
  EXPECT_NE(document.find_step("bf16-master"), nullptr);
  EXPECT_EQ(document.find_step("tf32"), nullptr);
}

TEST(Document, AnUnknownSectionIsAProgrammingError) { EXPECT_THROW(Document().set("step", 1), std::logic_error); }

TEST(Document, EveryStatusButOkNeedsAReason) {
  Json row;
  EXPECT_THROW(set_status(row, Status::failed), std::logic_error);
  set_status(row, Status::ok);
  EXPECT_TRUE(row["reason"].is_null());
  set_status(row, Status::skipped, "no time left");
  EXPECT_EQ(row["reason"], "no time left");
}

TEST(Document, UtcTextIsIso8601) {
  EXPECT_EQ(utc_text(0), "1970-01-01T00:00:00Z");
  EXPECT_EQ(utc_text(1768471200), "2026-01-15T10:00:00Z");
}

TEST(Stat, WithoutSamplesEveryFigureIsNull) {
  const Json stat = stat_to_json(Summary{});
  EXPECT_EQ(stat["n"], 0);
  for (const char* key :
       {"median", "low", "high", "confidence", "mean", "stddev", "min", "max", "clock_hz", "throttled"})
    EXPECT_TRUE(stat[key].is_null()) << key;
  EXPECT_EQ(stat["samples"], Json::array());
}

TEST(Stat, ReadsBackAsTheSameSummary) {
  const std::vector<double> times = {0.25, 0.5, 0.125}, clocks = {3e9, 3e9, 2e9};
  const Summary summary = summarize(times, 0.95, clocks);
  const Summary back = stat_from_json(parse_json(stat_to_json(summary).dump(), "r.json"));
  EXPECT_EQ(stat_to_json(back), stat_to_json(summary));
  EXPECT_EQ(back.samples, times);
  EXPECT_EQ(back.clock_hz, clocks);
  EXPECT_TRUE(back.throttled);  // 2 GHz is more than 5 % below 3 GHz
}

TEST(Json, JSN1_NonFiniteNumbersAreNullWithAReason) {
  Json document = {
      {"ratio", kNaN}, {"rates", {1.5, kInfinity, -kInfinity}}, {"nested", {{"deep", {{"x", -kNaN}}}}}, {"fine", 2.0}};
  const std::string text = document_text(document);
  const Json back = parse_json(text, "r.json");
  EXPECT_TRUE(back["ratio"].is_null());
  EXPECT_EQ(back.at("ratio_reason"), "not a finite number");
  EXPECT_EQ(back["rates"], Json::parse("[1.5,null,null]"));
  EXPECT_EQ(back.at("rates_reason"), "not a finite number");
  EXPECT_TRUE(back["nested"]["deep"]["x"].is_null());
  EXPECT_EQ(back["nested"]["deep"].at("x_reason"), "not a finite number");
  EXPECT_FALSE(back.contains("fine_reason"));
}

TEST(Json, JSN1_SetNumberKeepsTheGivenReason) {
  Json object;
  set_number(object, "mfu", kNaN, "no ceiling was measured");
  EXPECT_TRUE(object["mfu"].is_null());
  EXPECT_EQ(object["mfu_reason"], "no ceiling was measured");
  set_number(object, "mfu", 0.4, "");
  EXPECT_EQ(object["mfu"], 0.4);
  EXPECT_FALSE(object.contains("mfu_reason"));
}

TEST(Json, JSN1_BareNonFiniteNumbersAreRefusedWithLineAndColumn) {
  // The value starts at column 6 of line 2; the parser stops at the first byte that cannot belong to JSON.
  EXPECT_THAT(parse_failure("{\n\"a\": NaN}"), HasSubstr("r.json: line 2, column 6: "));
  EXPECT_THAT(parse_failure("{\n\"a\": -nan}"), HasSubstr("r.json: line 2, column 7: "));
  EXPECT_THAT(parse_failure("{\n\"a\": Infinity}"), HasSubstr("r.json: line 2, column 6: "));
  EXPECT_THAT(parse_failure("{\n\"a\": inf}"), HasSubstr("r.json: line 2, column 6: "));
  // "1e999" ends at column 10; it is known to be too large once it has been read.
  EXPECT_THAT(parse_failure("{\n\"a\": 1e999}"), HasSubstr("r.json: line 2, column 10: number overflow"));
}

TEST(Json, CutOrTrailingTextIsRefusedInOneLine) {
  for (const std::string text : {"{\"a\": [1, 2", "{\"a\": 1} x", "{\"a\": 1,}", "{'a': 1}", "\"open"}) {
    const std::string message = parse_failure(text);
    EXPECT_THAT(message, HasSubstr("r.json: line 1, column "));
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
  EXPECT_THAT(parse_failure(""), HasSubstr("the file is empty"));
  // What was read is quoted, but neither at any length nor with bytes that a terminal cannot show.
  EXPECT_LT(parse_failure("[\"" + std::string(100000, 'x')).size(), 300u);
  EXPECT_THAT(parse_failure("[\"caf\xE9 \"]"), HasSubstr("\xEF\xBF\xBD"));
  EXPECT_THAT(parse_failure("\xEF\xBB\xBF \r\n"), HasSubstr("the file is empty"));
}

TEST(Json, ByteOrderMarkAndCarriageReturnsAreAccepted) {
  EXPECT_EQ(parse_json("\xEF\xBB\xBF{\r\n\"a\": 1\r\n}\r\n", "r.json"), Json({{"a", 1}}));
}

TEST(Json, JSN2_NamesWithSpecialCharactersComeBackEqual) {
  const std::string name = "C:\\dir \"x\"\t\x01\x7f\n\xF0\x9F\x98\x80 \xC3\xBC";
  const std::string text = document_text({{name, name}});
  EXPECT_THAT(text, HasSubstr("\\u0001"));
  EXPECT_EQ(parse_json(text, "r.json"), Json({{name, name}}));
}

TEST(Json, JSN2_BytesThatAreNotUtf8BecomeTheReplacementCharacter) {
  const Json back = parse_json(document_text({{"a\xFFz", "caf\xE9 \xED\xA0\x80"}}), "r.json");
  ASSERT_TRUE(back.contains("a\xEF\xBF\xBDz"));
  EXPECT_THAT(back.begin().value().get<std::string>(), testing::StartsWith("caf\xEF\xBF\xBD"));
}

TEST(Json, JSN2_SanitizeReplacesEachByteOutsideUtf8) {
  const std::string replacement = "\xEF\xBF\xBD";
  EXPECT_EQ(sanitize_utf8("a\xFFz\xE9"), "a" + replacement + "z" + replacement);
  EXPECT_EQ(sanitize_utf8("\xC3\xBC\xE2\x82\xAC\xF0\x9F\x98\x80"), "\xC3\xBC\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_EQ(sanitize_utf8("\xC0\x80"), replacement + replacement);                                      // overlong
  EXPECT_EQ(sanitize_utf8("\xED\xA0\x80"), replacement + replacement + replacement);                    // surrogate
  EXPECT_EQ(sanitize_utf8("\xF4\x90\x80\x80"), replacement + replacement + replacement + replacement);  // past U+10FFFF
  EXPECT_EQ(sanitize_utf8("\xE2\x82"), replacement + replacement);                                      // cut
}

/// Decimal comma and thousands separators, as on a German or French machine.
struct CommaFacet : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(Json, JSN3_TextDoesNotDependOnTheLocale) {
  const Json document = {{"value", 3.5}, {"count", 86400000}, {"small", 1.25e-7}};
  const std::string expected = document_text(document);
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new CommaFacet));
  const std::string text = document_text(document);
  const Json back = parse_json(text, "r.json");
  const std::string utc = utc_text(1768471200);
  std::locale::global(before);
  EXPECT_EQ(text, expected);
  EXPECT_THAT(text, HasSubstr("86400000"));
  EXPECT_EQ(back, document);
  EXPECT_EQ(utc, "2026-01-15T10:00:00Z");
}

std::string version_failure(const Json& document) {
  try {
    check_schema_version(document, "r.json");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(SchemaVersion, JSN4_SameMajorIsReadWithUnknownKeys) {
  EXPECT_EQ(version_failure({{"schema", "mixroof/result/1.0"}}), "accepted");
  EXPECT_EQ(version_failure({{"schema", "mixroof/result/1.9"}, {"new", 1}}), "accepted");
}

TEST(SchemaVersion, JSN4_NewerMajorIsRefusedWithFileAndBothVersions) {
  const std::string message = version_failure({{"schema", "mixroof/result/2.0"}});
  EXPECT_THAT(message, HasSubstr("r.json"));
  EXPECT_THAT(message, HasSubstr("mixroof/result/2.0 is newer"));
  EXPECT_THAT(message, HasSubstr("mixroof/result/1.0"));
}

TEST(SchemaVersion, JSN4_WrongTypesAndMissingVersionAreRefused) {
  const std::vector<Json> wrong = {
      "1.0.0", 1, nullptr, "mixroof/result/1", "mixroof/result/1.x", "mixroof/result/1.0 "};
  for (const Json& schema : wrong) {
    const std::string message = version_failure({{"schema", schema}});
    EXPECT_THAT(message, HasSubstr("r.json: schema is " + schema.dump()));
    EXPECT_THAT(message, HasSubstr("mixroof/result/1.x"));
  }
  EXPECT_THAT(version_failure(Json::object()), HasSubstr("no key \"schema\""));
  EXPECT_THAT(version_failure(Json::array()), HasSubstr("expected a result document"));
}

}  // namespace
}  // namespace mixroof
