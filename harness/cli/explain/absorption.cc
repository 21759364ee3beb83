// Updates that a 16-bit weight absorbs, and the FP32 master that keeps them.
#include "harness/cli/explain/absorption.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "harness/cli/explain/tensor_update.h"
#include "harness/cli/explain/topic.h"

namespace mixroof::cli {
namespace {

constexpr int kManyUpdates = 100;

Section small_step_in_fp16(Workbench& bench) {
  constexpr int kUpdates = 4;
  const RepeatedUpdate weight = repeat_update(bench, Format::fp16, 1.5, -0x1p-12, kUpdates);
  Table table({{"after"},
               {"FP16 only", Align::right},
               {"FP32 master", Align::right},
               {"FP16 copy of it", Align::right}});
  for (std::size_t i = 0; i < kUpdates; ++i)
    table.add_row({fmt::format("update {}", i + 1), number(weight.low_only[i]), number(weight.master[i]),
                   number(weight.copy_of_master[i])});
  return {.title = "An FP16 weight of 1.5, each AdamW update -2^-12",
          .text = "",
          .table = table,
          .note = "The spacing of FP16 at 1.5 is 2^-10: a quarter of it is rounded away every time. The master keeps each "
                  "update, and its copy moves as soon as they add up to more than half a spacing, with the third."};
}

Section hundred_steps_in_bf16(Workbench& bench) {
  const RepeatedUpdate weight = repeat_update(bench, Format::bf16, 1.0, -6e-4, kManyUpdates);
  Table table({{"weight kept in"}, {"after 1 update", Align::right}, {fmt::format("after {}", kManyUpdates), Align::right}});
  const auto row = [&](const char* kept, const Values& values) {
    table.add_row({kept, number(values.front()), number(values.back())});
  };
  row("BF16 only", weight.low_only);
  row("FP32 master", weight.master);
  row("BF16 copy of it", weight.copy_of_master);
  return {.title = "A BF16 weight of 1, a hundred AdamW updates of -6e-4",
          .text = "",
          .table = table,
          .note = "Half the spacing of BF16 below 1 is 2^-9 = 0.00195, more than 6e-4: nothing ever moves."};
}

Section sums(Workbench& bench) {
  struct Sum {
    const char* text;
    double start, addend;
    Format format;
  };
  constexpr std::array kSums = std::to_array<Sum>({{"1 + 1e-7", 1, 1e-7, Format::fp16},
                                                   {"1 + 1e-5", 1, 1e-5, Format::bf16},
                                                   {"1 + 1e-7", 1, 1e-7, Format::fp32},
                                                   {"1 + 1e-5", 1, 1e-5, Format::fp32}});
  Table table({{"sum"}, {"format"}, {"result", Align::right}, {"lost up to", Align::right}});
  for (const Sum& sum : kSums)
    table.add_row({sum.text, std::string(name(sum.format)),
                   number(bench.add(sum.start, sum.addend, sum.format)),
                   small_number(facts(sum.format).unit_roundoff)});
  return {.title = "One addition",
          .text = "",
          .table = table,
          .note = "An addend of at most half the spacing (\"lost up to\", at 1) leaves the sum as it was."};
}

Section factors_near_one(Workbench& bench) {
  const Values factors = {1 - 1e-6, 0.999};
  Table table({{"", Align::left},
               {"fp32", Align::right},
               {"fp16", Align::right},
               {"bf16", Align::right}});
  const std::array formats = {Format::fp32, Format::fp16, Format::bf16};
  std::vector<std::string> decay = {"decay factor 1 - 1e-6"}, beta2 = {"beta2 0.999"},
                           weight = {fmt::format("weight 1 after {}", kManyUpdates)},
                           moment = {fmt::format("moment 2 of 1 after {}", kManyUpdates)};
  for (const Format format : formats) {
    const Values rounded = bench.cast(factors, format);
    const SlowDecay after = decay_slowly(bench, format, kManyUpdates);
    decay.push_back(number(rounded[0]));
    beta2.push_back(number(rounded[1]));
    weight.push_back(number(after.weight));
    moment.push_back(number(after.moment2));
  }
  for (const auto& row : {decay, beta2, weight, moment}) table.add_row(row);
  return {.title = "Factors close to 1",
          .text = "Rounded to each format; below, AdamW with zero gradient: learning rate 1e-5, decay 0.1, beta2 0.999, "
                  "weight and moments kept in that format.",
          .table = table,
          .note = "In BF16 both factors are 1: weight decay vanishes and the second moment never forgets."};
}

Page page() {
  Workbench bench;
  return {.summary = "Absorption: a weight kept in 16 bits loses every update smaller than half its spacing, however many "
                     "there are.",
          .sections = {small_step_in_fp16(bench), hundred_steps_in_bf16(bench), sums(bench), factors_near_one(bench)},
          .rule = "keep an FP32 master (or FP32 weights) and round its copy once per update. Recipes without one are "
                  "diagnostic and report absorbed_update_fraction."};
}

}  // namespace

RepeatedUpdate repeat_update(Workbench& bench, Format low, double weight, double update, int updates) {
  UpdateSetup setup{.weights = low, .update = {.learning_rate = std::fabs(update)}};
  TensorUpdate low_only(bench, setup, {weight});
  setup.master = true;
  TensorUpdate with_master(bench, setup, {weight});
  const Values grad = {std::copysign(1.0, -update)};
  RepeatedUpdate result;
  for (int i = 0; i < updates; ++i) {
    low_only.window(grad);
    with_master.window(grad);
    result.low_only.push_back(low_only.weights[0]);
    result.master.push_back(with_master.master[0]);
    result.copy_of_master.push_back(with_master.weights[0]);
  }
  return result;
}

SlowDecay decay_slowly(Workbench& bench, Format format, int updates) {
  TensorUpdate tensor(bench,
                      {.weights = format,
                       .moments = format,
                       .optimizer = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1},
                       .update = {.learning_rate = 1e-5}},
                      {1.0});
  tensor.moment2 = {1.0};
  for (int i = 0; i < updates; ++i) tensor.window({0.0});
  return {tensor.weights[0], tensor.moment2[0]};
}

Topic absorption_topic() {
  return {.name = "absorption", .summary = "updates too small for a 16-bit weight, and the FP32 master", .page = page};
}

}  // namespace mixroof::cli
