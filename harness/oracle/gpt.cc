// Group gpt: whole updates of small models. Each variant runs in double on the reference backend, judged by everything
// that is stored, and then in fp32 and in every recipe that has a yardstick on the device, judged by the double run.
#include <fmt/format.h>

#include <algorithm>

#include "harness/oracle/gpt_compare.h"

namespace mixroof {
namespace {

constexpr const char* kGroup = "gpt";

class VariantCheck {
 public:
  VariantCheck(OracleSession& session, const GptCase& c, std::string item)
      : session_(session), c_(c), item_(std::move(item)) {
    options_.states = c.states();
    options_.evaluate_after = c.evaluate_after();
  }

  void check() {
    session_.begin(item_ + " double");
    check_double();
    if (is_wanted(find_recipe("fp32"))) check_fp32();
    for (const GptYardstick& yardstick : gpt_yardsticks()) check_recipe(yardstick);
  }

 private:
  bool is_wanted(const Recipe& recipe) const {
    const auto& wanted = session_.options().recipes;
    return wanted.empty() || std::find(wanted.begin(), wanted.end(), &recipe) != wanted.end();
  }

  void skip(std::string_view recipe, const std::string& why) {
    session_.add({.group = kGroup,
                  .item = fmt::format("{} {}", item_, recipe),
                  .verdict = OracleVerdict::skipped,
                  .where = {},
                  .detail = why});
  }

  void check_double() {
    GptRunOptions options = options_;
    options.activations = true;
    truth_ = run_gpt(c_.model, c_.variant, find_recipe("fp32"), session_.reference(), options);
    Comparison comparison;
    compare_gpt_double(c_, truth_, comparison);
    session_.add(comparison.row(kGroup, item_ + " double"));
  }

  /// Runs `recipe` on the device and lets `compare(result, comparison)`, which returns the row's detail, judge it.
  template <typename Compare>
  void run(const Recipe& recipe, const GptRunOptions& options, Compare compare) {
    session_.begin(fmt::format("{} {}", item_, recipe.name));
    try {
      const GptResult got = run_gpt(c_.model, c_.variant, recipe, session_.device(), options);
      Comparison comparison;
      const std::string detail = compare(got, comparison);
      session_.add(comparison.row(kGroup, fmt::format("{} {}", item_, recipe.name), detail));
    } catch (const Error& error) {
      if (error.status() != Status::not_supported) throw;
      skip(recipe.name, error.what());
    }
  }

  void check_fp32() {
    const std::optional<StoredYardstick> yardstick = find_yardstick(c_.entry, "fp32");
    run(find_recipe("fp32"), options_, [&](const GptResult& got, Comparison& comparison) -> std::string {
      compare_gpt_fp32(c_, got, truth_, yardstick, comparison);
      return yardstick ? "" : "no yardstick: by the floors alone";
    });
  }

  void check_recipe(const GptYardstick& row) {
    const Recipe* recipe = recipe_or_null(row.recipe);
    if (recipe != nullptr && !is_wanted(*recipe)) return;
    const std::optional<StoredYardstick> yardstick = find_yardstick(c_.entry, row.name);
    if (recipe == nullptr) return skip(row.recipe, "this build has no such recipe");
    if (!yardstick) return skip(row.recipe, fmt::format("no yardstick {} in this variant", row.name));
    GptRunOptions options = options_;
    options.loss_scale = yardstick->loss_scale;
    options.rehearse = recipe->fp8 == Fp8Scaling::delayed;
    run(*recipe, options, [&](const GptResult& got, Comparison& comparison) {
      const double share =
          compare_gpt_recipe(c_, got, truth_, *yardstick, c_.is_sharp() ? row.sharp : row.initial, comparison);
      return fmt::format("layer linears {:.2f} of yardstick {}", share, yardstick->key);
    });
  }

  OracleSession& session_;
  const GptCase& c_;
  std::string item_;
  GptRunOptions options_;
  GptResult truth_;
};

}  // namespace

void check_gpt_group(OracleSession& session) {
  for (const std::string& manifest : session.manifests(kGroup)) {
    const OracleModel model(fmt::format("{}/{}/{}", session.options().folder, kGroup, manifest));
    for (const std::string& name : model.variant_names()) {
      const OracleVariant variant = model.variant(name);
      const GptCase c{.model = model,
                      .variant = variant,
                      .entry = OracleEntry(model.file()).at("variants").at(name),
                      .tensors = gpt_tensors(model)};
      VariantCheck(session, c, fmt::format("{}/{}", manifest, name)).check();
    }
  }
}

}  // namespace mixroof
