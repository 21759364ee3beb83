#include "harness/execute/training_state.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <random>

#include "harness/execute/initialization.h"
#include "harness/program/lower.h"

namespace mixroof {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const Batch kBatch{.micro_batch = 2, .seq = 16, .micro_batches = 1};

Backend& cpu() {
  static const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  return *backend;
}

Window window(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<std::int32_t> token(0, 255);
  MicroBatch m;
  for (int i = 0; i < 32; ++i) m.tokens.push_back(token(random)), m.targets.push_back(token(random));
  return {m};
}

std::unique_ptr<Execution> start(std::string_view recipe, double scale = 1024) {
  const Model& model = find_model("gpt2-tiny");
  auto execution =
      std::make_unique<Execution>(lower(model, find_recipe(recipe), kBatch, cpu().target()), cpu(), Placement::arena);
  execution->initialize(initial_parameters(model, 7), scale);
  return execution;
}

std::vector<double> train(Execution& execution, std::uint64_t first, std::uint64_t last) {
  std::vector<double> losses;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    execution.run_update(window(seed));
    losses.push_back(execution.outcome().loss);
  }
  return losses;
}

TrainingState state_of(const Execution& execution) {
  TrainingState state;
  state.recipe = execution.program().recipe->name;
  state.workload = {{"--seq", "16"}, {"--lr", "0.001"}};
  state.update = execution.outcome().attempted;
  const auto count = static_cast<std::size_t>(state.update);
  state.history = {
      std::vector<double>(count, 1.0 / 3), std::vector<double>(count, INFINITY), std::vector<double>(count, 1024), {2}};
  if (count > 0) state.history.loss.back() = NAN;
  state.tuning["matmul/x"] = {.implementation = "mixroof", .library = "avx2", .time_s = 0.1};
  state.tool_version = "test";
  return state;
}

class TrainingStates : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(folder_); }

  void edit_json(const std::string& from, const std::string& to) const {
    std::ifstream in(folder_ / "state.json");
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    std::ofstream(folder_ / "state.json") << text.replace(at, from.size(), to);
  }
  std::string refusal() const {
    try {
      load_training_state(folder_);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }
  std::string restore_refusal(Execution& execution) const {
    try {
      restore_training_state(folder_, load_training_state(folder_), execution);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }

  const fs::path folder_ = fs::temp_directory_path() / fmt::format("mixroof_state_{}", getpid()) / "s";
};

// Every recipe of the table: what goes on from a saved state gives the bits of what was never interrupted.
TEST_F(TrainingStates, GoingOn_GivesTheSameBits_InEveryRecipe) {
  for (const Recipe& recipe : all_recipes()) {
    SCOPED_TRACE(recipe.name);
    // Scales that overflow at first, so that the scaler's state matters.
    const double scale = recipe.loss_scaling == LossScaling::dynamic ? 0x1p24 : 1;
    const auto whole = start(recipe.name, scale);
    train(*whole, 1, 4);
    save_training_state(folder_, state_of(*whole), *whole);
    const std::vector<double> expected = train(*whole, 5, 8);

    const auto resumed = start(recipe.name, scale);
    EXPECT_TRUE(restore_training_state(folder_, load_training_state(folder_), *resumed).empty());
    EXPECT_EQ(train(*resumed, 5, 8), expected);
    for (std::size_t i = 0; i < whole->program().tensors.size(); ++i) {
      const Tensor& tensor = whole->program().tensors[i];
      if (!tensor.persistent) continue;
      EXPECT_EQ(whole->read(static_cast<TensorId>(i)), resumed->read(static_cast<TensorId>(i))) << tensor.name;
    }
  }
}

TEST_F(TrainingStates, JsonRoundTrips_AlsoWhatIsNotFinite) {
  const auto execution = start("fp16-master");
  train(*execution, 1, 3);
  const TrainingState saved = state_of(*execution);
  save_training_state(folder_, saved, *execution);
  const TrainingState loaded = load_training_state(folder_);
  EXPECT_EQ(loaded.recipe, saved.recipe);
  EXPECT_EQ(loaded.workload, saved.workload);
  EXPECT_EQ(loaded.update, 3);
  EXPECT_EQ(loaded.history.loss[0], 1.0 / 3);
  EXPECT_TRUE(std::isnan(loaded.history.loss[2]));
  EXPECT_EQ(loaded.history.grad_norm, saved.history.grad_norm);
  EXPECT_EQ(loaded.history.overflowed, saved.history.overflowed);
  EXPECT_EQ(loaded.tuning.at("matmul/x").library, "avx2");
}

TEST_F(TrainingStates, ANewSave_ReplacesTheOldFiles_ButTheOneToKeep) {
  const auto execution = start("fp32", 1);
  std::string first;
  for (int i = 0; i < 3; ++i) {
    train(*execution, 1, 1);
    save_training_state(folder_, state_of(*execution), *execution, first);
    if (i == 0) first = load_training_state(folder_).tensors_file;
  }
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_)) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"state.json", "tensors-1.safetensors", "tensors-3.safetensors"}));
}

TEST_F(TrainingStates, ASaveAtTheSameUpdate_LeavesTheOldFileWholeUntilTheNewJsonIsThere) {
  const auto execution = start("fp32", 1);
  train(*execution, 1, 1);
  save_training_state(folder_, state_of(*execution), *execution);
  const std::string first = load_training_state(folder_).tensors_file;
  save_training_state(folder_, state_of(*execution), *execution);
  EXPECT_NE(load_training_state(folder_).tensors_file, first);
  EXPECT_FALSE(fs::exists(folder_ / first));
}

TEST_F(TrainingStates, Converted_ParametersComeFromTheMaster_ScaleAndClocksFollowTheRule) {
  const auto bf16 = start("bf16-master", 1);
  train(*bf16, 1, 3);
  save_training_state(folder_, state_of(*bf16), *bf16);
  const auto fp16 = start("fp16-master", 4096);
  const std::vector<std::string> report = restore_training_state(folder_, load_training_state(folder_), *fp16);
  EXPECT_THAT(report, testing::Contains(HasSubstr("from recipe bf16-master")));
  EXPECT_THAT(report, testing::Contains("loss scale starts anew"));
  const Program::Parameter &from = bf16->program().parameters[0], &to = fp16->program().parameters[0];
  EXPECT_EQ(bf16->read(from.master), fp16->read(to.master));
  EXPECT_EQ(bf16->read(from.moment2), fp16->read(to.moment2));
  EXPECT_NE(bf16->read(from.param), fp16->read(to.param)) << "rounded from the master, not from the rounded copy";
  EXPECT_EQ(fp16->outcome().attempted, 3);
  EXPECT_EQ(fp16->outcome().applied_total, 3);
  EXPECT_EQ(fp16->outcome().loss_scale, 4096);

  save_training_state(folder_, state_of(*fp16), *fp16);
  const auto autocast = start("fp16-autocast", 2);
  EXPECT_THAT(restore_training_state(folder_, load_training_state(folder_), *autocast),
              testing::Contains("loss scale kept"));
  EXPECT_EQ(autocast->outcome().loss_scale, 4096);
  EXPECT_EQ(autocast->read(autocast->program().parameters[0].param), fp16->read(to.master));
}

TEST_F(TrainingStates, ValuesThatFp16CannotHold_AreRefusedByTensorAndCount) {
  const auto bf16 = start("bf16-nomaster", 1);
  const Program::Parameter& p = bf16->program().parameters[1];
  std::vector<double> values = bf16->read(p.param);
  values[0] = 65536;
  values[5] = -1e30;
  values[7] = 65280;  // the largest bf16 below the largest fp16
  bf16->write(p.param, values);
  save_training_state(folder_, state_of(*bf16), *bf16);
  const auto fp16 = start("fp16-nomaster", 1);
  const std::string message = restore_refusal(*fp16);
  EXPECT_THAT(message, testing::AllOf(HasSubstr("'" + p.name + "'"), HasSubstr("has 2 values"), HasSubstr("fp16"),
                                      HasSubstr("65504")));
  const auto wide = start("fp32", 1);
  EXPECT_EQ(restore_refusal(*wide), "");
}

TEST_F(TrainingStates, DamagedStates_AreRefusedWithFileKeyAndValues) {
  const auto execution = start("fp32", 1);
  train(*execution, 1, 1);
  const auto save = [&] { save_training_state(folder_, state_of(*execution), *execution); };
  EXPECT_THAT(refusal(), HasSubstr("state.json: cannot be read"));
  save();
  EXPECT_EQ(refusal(), "");
  edit_json("mixroof/state/1.0", "mixroof/state/2.0");
  EXPECT_THAT(refusal(), testing::AllOf(HasSubstr("mixroof/state/2.0"), HasSubstr("mixroof/state/1.0")));
  save();
  edit_json("mixroof/state/1.0", "something");
  EXPECT_THAT(refusal(), HasSubstr("no saved training state"));
  save();
  edit_json("\"mixroof/state/1.0\"", "7");
  EXPECT_THAT(refusal(), HasSubstr("no saved training state"));
  save();
  edit_json("\"update\"", "\"date\"");
  EXPECT_THAT(refusal(), HasSubstr("state.json: has no key 'update'"));
  save();
  edit_json("\"update\": 1", "\"update\": \"one\"");
  EXPECT_THAT(refusal(), HasSubstr("key 'update' is \"one\", expected a number of updates"));
  save();
  edit_json("\"update\": 1", "\"update\": -1");
  EXPECT_THAT(refusal(), HasSubstr("key 'update' is -1, expected 0 or more"));
  save();
  edit_json("\"file\": \"", "\"file\": \"../s/");
  EXPECT_THAT(refusal(), HasSubstr("expected a file of the same folder"));
  save();
  edit_json("\"update\": 1", "\"update\": 2");
  EXPECT_THAT(refusal(), testing::AllOf(HasSubstr("1 values"), HasSubstr("expected 2")));
  save();
  edit_json("{", "");
  EXPECT_THAT(refusal(), HasSubstr("is no JSON"));
  save();
  fs::path tensors = folder_ / load_training_state(folder_).tensors_file;
  fs::resize_file(tensors, fs::file_size(tensors) - 4);
  EXPECT_THAT(refusal(), HasSubstr(tensors.string()));
  save();
  tensors = folder_ / load_training_state(folder_).tensors_file;
  std::fstream damage(tensors, std::ios::in | std::ios::out | std::ios::binary);
  damage.seekp(-1, std::ios::end);
  damage.put('\x55');
  damage.close();
  EXPECT_THAT(refusal(), testing::AllOf(HasSubstr("damaged"), HasSubstr("SHA-256")));
  fs::remove(tensors);
  EXPECT_THAT(refusal(), HasSubstr("cannot be opened"));
}

TEST_F(TrainingStates, AJsonOfAnotherMomentThanItsTensors_IsRefused) {
  const auto execution = start("fp32", 1);
  train(*execution, 1, 2);
  TrainingState state = state_of(*execution);
  state.update = 1;
  for (std::vector<double>* list : {&state.history.loss, &state.history.grad_norm, &state.history.loss_scale})
    list->pop_back();
  save_training_state(folder_, state, *execution);
  for (const char* recipe : {"fp32", "bf16-master"})
    EXPECT_THAT(restore_refusal(*start(recipe, 1)), HasSubstr("'control' stands at update 2, expected 1")) << recipe;
}

TEST_F(TrainingStates, AFolderInPlaceOfTheJson_IsRefused) {
  fs::create_directories(folder_ / "state.json");
  EXPECT_THAT(refusal(), HasSubstr("state.json: cannot be read"));
}

TEST_F(TrainingStates, AnotherShape_IsRefusedByTensor) {
  const auto execution = start("fp32", 1);
  save_training_state(folder_, state_of(*execution), *execution);
  Model wider = find_model("gpt2-tiny");
  wider.vocab = 300;
  Execution other(lower(wider, find_recipe("fp32"), kBatch, cpu().target()), cpu(), Placement::arena);
  other.initialize(initial_parameters(wider, 7), 1);
  EXPECT_THAT(restore_refusal(other), testing::AllOf(HasSubstr("wte.weight"), HasSubstr("256"), HasSubstr("300")));
}

TEST_F(TrainingStates, TheReferenceDevice_SaysThatItSavesNothing) {
  const std::unique_ptr<Backend> reference = make_reference_backend();
  const Model& model = find_model("gpt2-tiny");
  Execution execution(lower(model, find_recipe("fp32"), kBatch, reference->target()), *reference,
                      Placement::per_tensor);
  execution.initialize(initial_parameters(model, 7), 1);
  EXPECT_THROW(save_training_state(folder_, state_of(execution), execution), Error);
}

}  // namespace
}  // namespace mixroof
