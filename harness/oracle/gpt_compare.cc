#include "harness/oracle/gpt_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace mixroof {
namespace {

// A float64 implementation (README of the oracle).
constexpr double kScalar = 1e-12, kOfTensor = 1e-11, kOfFingerprint = 1e-11, kStoredFloat = 1e-7;
// fp32: floors of the yardsticks, and the share of a tensor's largest first gradient above which an element is clear.
constexpr double kLossFloor = 5e-7, kGradFloor = 2e-6, kMomentFloor = 4e-6;
constexpr double kParamFloorAfter1 = 2e-4, kParamFloorLater = 4e-3, kClearShare = 1e-3;
// Recipes: limits in yardsticks, and the least share of the yardstick that a result which rounds as named has.
constexpr double kTimesYardstick = 2, kTimesCosine = 4, kPlausible = 0.4;

constexpr const char* kEvaluated = "loss_on_window_1_after_update_";

double limit_of(double yardstick, double floor) { return kTimesYardstick * std::max(yardstick, floor); }

/// "after3/params" and "after3/moment1/x" are of update 3.
std::optional<std::int64_t> update_of(std::string_view path) {
  constexpr std::string_view kAfter = "after";
  if (!path.starts_with(kAfter)) return std::nullopt;
  std::int64_t update = 0;
  const char* begin = path.data() + kAfter.size();
  const auto [end, error] = std::from_chars(begin, path.data() + path.size(), update);
  if (error != std::errc() || end == begin || end == path.data() + path.size() || *end != '/') return std::nullopt;
  return update;
}

/// "h.0.after_attention" and "layers.0.after_attention" are "0.after_attention".
std::string canonical_activation(const std::string& name) {
  const std::size_t last = name.rfind('.');
  const std::size_t before = last == std::string::npos || last == 0 ? std::string::npos : name.rfind('.', last - 1);
  return before == std::string::npos ? name : name.substr(before + 1);
}

/// Tensors of a result by the path of their arrays: "grads", "after1/params", …; null when that was not run.
const TensorValues* values_at(const GptResult& result, std::string_view path) {
  if (path == "grads") return &result.grads;
  const std::optional<std::int64_t> update = update_of(path);
  if (!update || !result.after.contains(*update)) return nullptr;
  const GptState& state = result.after.at(*update);
  const std::string_view kind = path.substr(path.find('/') + 1);
  return kind == "params"    ? &state.params
         : kind == "moment1" ? &state.moment1
         : kind == "moment2" ? &state.moment2
                             : nullptr;
}

void compare_losses(const GptCase& c, const GptResult& got, Comparison& comparison) {
  for (std::size_t u = 0; u < got.outcomes.size(); ++u) {
    const UpdateOutcome& o = got.outcomes[u];
    const auto near = [&](const char* key, double value) {
      const double expected = c.entry.at(key).at(u).number();
      comparison.near(value, expected, kScalar * std::fabs(expected), fmt::format("{}[{}]", key, u));
    };
    comparison.equal(static_cast<double>(effective_tokens(c.variant.windows[u])),
                     c.entry.at("effective_tokens").at(u).number(), fmt::format("effective_tokens[{}]", u));
    comparison.equal(o.applied, 1, fmt::format("update {} is applied", u + 1));
    near("loss", o.loss);
    near("grad_norm", o.grad_norm);
    near("clip_coefficient", o.clip_coefficient);
  }
  for (const auto& [update, loss] : got.first_window_loss_after) {
    const std::string key = kEvaluated + std::to_string(update);
    comparison.near(loss, c.entry.number(key), kScalar * c.entry.number(key), key);
  }
}

/// [l2 norm, sum, largest magnitude, Σ a[i]·(1 + i mod 97)] to 1e-11 of the l2 norm × [1, √n, 1, 97·√n].
void compare_fingerprint(const OracleEntry& print, const std::vector<double>& values, Comparison& comparison) {
  double squares = 0, sum = 0, weighted = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    squares += values[i] * values[i];
    sum += values[i];
    weighted += values[i] * static_cast<double>(1 + i % 97);
  }
  const double norm = print.at(std::size_t{0}).number(), root = std::sqrt(static_cast<double>(values.size()));
  const double figures[] = {std::sqrt(squares), sum, largest_magnitude(values), weighted},
               sizes[] = {1, root, 1, 97 * root};
  constexpr const char* kNames[] = {"l2 norm", "sum", "largest magnitude", "weighted sum"};
  for (std::size_t i = 0; i < 4; ++i)
    comparison.near(figures[i], print.at(i).number(), kOfFingerprint * norm * sizes[i],
                    fmt::format("{} ({})", print.key(), kNames[i]));
}

void compare_fingerprints(const GptCase& c, const GptResult& got, Comparison& comparison) {
  if (!c.entry.has("fingerprints")) return;
  const OracleEntry prints = c.entry.at("fingerprints");
  for (const std::string& path : prints.keys()) {
    const TensorValues* values = values_at(got, path);
    if (values == nullptr) continue;
    for (std::size_t t = 0; t < c.tensors.size(); ++t)
      if (prints.at(path).has(c.tensors[t].name))
        compare_fingerprint(prints.at(path).at(c.tensors[t].name), (*values)[t], comparison);
  }
}

/// float64 arrays to 1e-11 of the largest, float32 ones to their own rounding beside it.
void compare_array(const OracleFile& file, const std::string& array, const std::vector<double>& got,
                   Comparison& comparison) {
  const double rounding = file.dtype(array) == "float64" ? 0 : kStoredFloat;
  comparison.near(got, file.values(array), {.relative = rounding, .of_largest = kOfTensor}, array);
}

void compare_arrays(const GptCase& c, const GptResult& got, Comparison& comparison) {
  const OracleFile& file = c.model.file();
  for (const char* kind : {"params", "moment1", "moment2"})
    for (const auto& [update, state] : got.after) {
      const std::string path = fmt::format("after{}/{}", update, kind);
      for (std::size_t t = 0; t < c.tensors.size(); ++t)
        if (const std::string array = fmt::format("{}/{}/{}", c.variant.name, path, c.tensors[t].name);
            file.has_array(array))
          compare_array(file, array, (*values_at(got, path))[t], comparison);
    }
  for (std::size_t t = 0; t < c.tensors.size(); ++t)
    if (const std::string array = fmt::format("{}/grads/{}", c.variant.name, c.tensors[t].name); file.has_array(array))
      compare_array(file, array, got.grads[t], comparison);
}

void compare_activations(const GptCase& c, const GptResult& got, Comparison& comparison) {
  const OracleFile& file = c.model.file();
  const std::string folder = c.variant.name + "/activations/";
  for (const std::string& array : file.array_names()) {
    const bool is_activation = array.starts_with(folder);
    if (!is_activation && array != c.variant.name + "/logits") continue;
    const std::string name = is_activation ? canonical_activation(array.substr(folder.size())) : "logits";
    if (const auto found = got.activations.find(name); found != got.activations.end())
      compare_array(file, array, found->second, comparison);
  }
}

// ---- figures of one run against another

struct Sums {
  double difference = 0, truth = 0, got = 0, product = 0;  // squares, and got · truth

  double l2_rel() const { return difference == 0 ? 0 : std::sqrt(difference / truth); }
  double cosine() const { return product / std::sqrt(got * truth); }
};

Sums sums_of(const TensorValues& got, const TensorValues& truth,
             const std::vector<GptTensor>* layer_linears_of = nullptr) {
  Sums sums;
  for (std::size_t t = 0; t < truth.size(); ++t) {
    if (layer_linears_of != nullptr && !(*layer_linears_of)[t].is_layer_linear) continue;
    for (std::size_t i = 0; i < truth[t].size(); ++i) {
      const double difference = got[t][i] - truth[t][i];
      sums.difference += difference * difference;
      sums.truth += truth[t][i] * truth[t][i];
      sums.got += got[t][i] * got[t][i];
      sums.product += got[t][i] * truth[t][i];
    }
  }
  return sums;
}

TensorValues minus(TensorValues a, const TensorValues& b) {
  for (std::size_t t = 0; t < a.size(); ++t)
    for (std::size_t i = 0; i < a[t].size(); ++i) a[t][i] -= b[t][i];
  return a;
}

double max_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(a[i] - b[i]);
    most = std::isnan(difference) ? INFINITY : std::max(most, difference);
  }
  return most;
}

/// The start, by the oracle's tensors.
TensorValues initial_params(const GptCase& c) {
  TensorValues all;
  for (std::size_t p = 0; p < c.model.parts().size(); ++p)
    for (const OraclePart& part : c.model.parts()[p]) {
      const auto begin = c.variant.parameters[p].begin() + part.offset;
      all.emplace_back(begin, begin + part.count);
    }
  return all;
}

void judge(Comparison& comparison, const std::string& figure, double measured, double yardstick, double floor) {
  comparison.within(measured, limit_of(yardstick, floor), [&] {
    return fmt::format("{} {:.3g} (yardstick {:.3g}, floor {:.3g})", figure, measured, yardstick, floor);
  });
}

double rel_diff(double got, double truth) { return got == truth ? 0 : std::fabs(got - truth) / std::fabs(truth); }

/// Losses, norms, and the first window's loss after the last update, whose yardstick is the worst of the losses'.
void judge_losses(const GptResult& got, const GptResult& truth, const OracleEntry* yardstick, double loss_floor,
                  double norm_floor, Comparison& comparison) {
  double worst_loss = 0;
  const auto stored = [&](const char* key, std::size_t u) {
    return yardstick ? yardstick->at(key).at(u).number() : 0.0;
  };
  for (std::size_t u = 0; u < truth.outcomes.size(); ++u) {
    const UpdateOutcome &g = got.outcomes[u], &t = truth.outcomes[u];
    comparison.equal(g.applied, t.applied, fmt::format("update {} is applied", u + 1));
    worst_loss = std::max(worst_loss, stored("loss_rel_diff", u));
    judge(comparison, fmt::format("loss_rel_diff[{}]", u), rel_diff(g.loss, t.loss), stored("loss_rel_diff", u),
          loss_floor);
    judge(comparison, fmt::format("grad_norm_rel_diff[{}]", u), rel_diff(g.grad_norm, t.grad_norm),
          stored("grad_norm_rel_diff", u), norm_floor);
  }
  for (const auto& [update, loss] : truth.first_window_loss_after) {
    if (yardstick != nullptr && yardstick->has("loss_on_window_1_after"))
      worst_loss = std::max(worst_loss, rel_diff(yardstick->number("loss_on_window_1_after"), loss));
    judge(comparison, kEvaluated + std::to_string(update), rel_diff(got.first_window_loss_after.at(update), loss),
          worst_loss, loss_floor);
  }
}

void compare_params_fp32(const GptCase& c, const GptResult& got, const GptResult& truth, std::int64_t update,
                         double clear_limit, Comparison& comparison) {
  const double rate = c.learning_rate(), rough_limit = 2 * rate * static_cast<double>(update);
  const TensorValues &a = got.after.at(update).params, &b = truth.after.at(update).params;
  for (std::size_t t = 0; t < b.size(); ++t) {
    const double clear = kClearShare * largest_magnitude(truth.grads[t]);
    for (std::size_t i = 0; i < b[t].size(); ++i)
      comparison.within(std::fabs(a[t][i] - b[t][i]),
                        std::fabs(truth.grads[t][i]) >= clear ? clear_limit * rate : rough_limit,
                        [&] { return fmt::format("after{}/params/{}[{}]", update, c.tensors[t].name, i); });
  }
}

}  // namespace

std::set<std::int64_t> GptCase::states() const {
  std::set<std::int64_t> updates;
  const auto add = [&](std::string_view path) {
    if (const auto update = update_of(path)) updates.insert(*update);
  };
  if (entry.has("fingerprints"))
    for (const std::string& path : entry.at("fingerprints").keys()) add(path);
  for (const std::string& array : model.file().array_names())
    if (array.starts_with(variant.name + "/")) add(std::string_view(array).substr(variant.name.size() + 1));
  return updates;
}

std::int64_t GptCase::evaluate_after() const {
  const std::string key = kEvaluated + std::to_string(variant.windows.size());
  return entry.has(key) ? static_cast<std::int64_t>(variant.windows.size()) : 0;
}

void compare_gpt_double(const GptCase& c, const GptResult& got, Comparison& comparison) {
  compare_losses(c, got, comparison);
  compare_arrays(c, got, comparison);
  compare_activations(c, got, comparison);
  compare_fingerprints(c, got, comparison);
}

void compare_gpt_fp32(const GptCase& c, const GptResult& got, const GptResult& truth,
                      const std::optional<StoredYardstick>& yardstick, Comparison& comparison) {
  const OracleEntry* y = yardstick ? &yardstick->entry : nullptr;
  judge_losses(got, truth, y, kLossFloor, kLossFloor, comparison);
  const double grads = limit_of(y ? y->at("grads").number("max_rel_of_worst_tensor") : 0, kGradFloor);
  for (std::size_t t = 0; t < c.tensors.size(); ++t)
    comparison.within(max_difference(got.grads[t], truth.grads[t]), grads * largest_magnitude(truth.grads[t]),
                      [&] { return fmt::format("grads/{}: largest difference", c.tensors[t].name); });
  for (const auto& [update, state] : truth.after) {
    const std::string key = std::to_string(update);
    const bool is_stored = y != nullptr && y->at("state_after").has(key);
    const auto stored = [&](const char* part, const char* figure) {
      return is_stored ? y->at("state_after").at(key).at(part).number(figure) : 0.0;
    };
    for (const auto& [part, member] :
         {std::pair{"moment1", &GptState::moment1}, std::pair{"moment2", &GptState::moment2}}) {
      const TensorValues &a = got.after.at(update).*member, &b = state.*member;
      const double limit = limit_of(stored(part, "max_rel"), kMomentFloor);
      for (std::size_t t = 0; t < c.tensors.size(); ++t)
        comparison.within(max_difference(a[t], b[t]), limit * largest_magnitude(b[t]), [&] {
          return fmt::format("after{}/{}/{}: largest difference", update, part, c.tensors[t].name);
        });
    }
    const double floor = update == 1 ? kParamFloorAfter1 : kParamFloorLater;
    compare_params_fp32(c, got, truth, update, limit_of(stored("params_clear", "max_abs_over_lr"), floor), comparison);
  }
}

double compare_gpt_recipe(const GptCase& c, const GptResult& got, const GptResult& truth,
                          const StoredYardstick& yardstick, const GptFloors& floors, Comparison& comparison) {
  const OracleEntry& y = yardstick.entry;
  judge_losses(got, truth, &y, floors.loss_rel_diff, floors.grad_norm_rel_diff, comparison);

  const OracleEntry grads = y.at("grads");
  const Sums all = sums_of(got.grads, truth.grads), linears = sums_of(got.grads, truth.grads, &c.tensors);
  judge(comparison, "gradient l2_rel", all.l2_rel(), grads.number("l2_rel"), 0);
  const double expected = grads.number("l2_rel_layer_linears"), measured = linears.l2_rel();
  judge(comparison, "gradient l2_rel of layer linears", measured, expected, 0);
  comparison.within(1 - all.cosine(), kTimesCosine * (1 - grads.number("cosine")),
                    [&] { return fmt::format("1 - gradient cosine {:.3g}", 1 - all.cosine()); });
  comparison.within(kPlausible * expected / measured, 1.0, [&] {
    return fmt::format(
        "{} of the yardstick over gradient l2_rel of layer linears, {:.3g}: a smaller error than the recipe's "
        "roundings make",
        kPlausible, measured);
  });

  const TensorValues start = initial_params(c);
  for (const auto& [update, state] : truth.after) {
    if (!y.at("state_after").has(std::to_string(update))) continue;
    const OracleEntry stored = y.at("state_after").at(std::to_string(update));
    const GptState& reached = got.after.at(update);
    const std::string after = fmt::format("after{}/", update);
    judge(comparison, after + "update_l2_rel",
          sums_of(minus(reached.params, start), minus(state.params, start)).l2_rel(),
          stored.at("params_all").number("update_l2_rel"), floors.update_l2_rel);
    judge(comparison, after + "moment1 l2_rel", sums_of(reached.moment1, state.moment1).l2_rel(),
          stored.at("moment1").number("l2_rel"), floors.moment_l2_rel);
    judge(comparison, after + "moment2 l2_rel", sums_of(reached.moment2, state.moment2).l2_rel(),
          stored.at("moment2").number("l2_rel"), floors.moment_l2_rel);
  }
  return measured / expected;
}

}  // namespace mixroof
