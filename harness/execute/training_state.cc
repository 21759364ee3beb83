#include "harness/execute/training_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "harness/execute/safetensors.h"
#include "harness/numeric/codec.h"

namespace mixroof {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kSchema = "mixroof/state/1.0";
constexpr const char* kStateFile = "state.json";
constexpr std::string_view kTensorsStem = "tensors-", kTensorsEnding = ".safetensors";

bool is_saved(const Tensor& tensor) { return tensor.persistent && tensor.tensor_class != TensorClass::grad; }

// ---- JSON

/// A double as JSON: numbers read back as the same bits; what JSON has no number for is a word.
ordered_json exact(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

ordered_json exact(const std::vector<double>& values) {
  ordered_json all = ordered_json::array();
  for (const double value : values) all.push_back(exact(value));
  return all;
}

/// A value as a message shows it: short, on one line.
std::string text_of(const ordered_json& value) {
  if (value.is_structured()) return fmt::format("an {}", value.type_name());
  const std::string all = value.dump();
  return all.size() <= 60 ? all : all.substr(0, 57) + "...";
}

const ordered_json& field(const ordered_json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) throw UsageError(fmt::format("has no key '{}'", key));
  return object.at(key);
}

template <class Value>
Value field(const ordered_json& object, const char* key, const char* expected) {
  const ordered_json& value = field(object, key);
  try {
    return value.get<Value>();
  } catch (const ordered_json::exception&) {
    throw UsageError(fmt::format("key '{}' is {}, expected {}", key, text_of(value), expected));
  }
}

double number_of(const ordered_json& value) {
  if (value.is_number()) return value.get<double>();
  const auto word = value.get<std::string>();
  if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (word == "inf" || word == "-inf") return word == "inf" ? HUGE_VAL : -HUGE_VAL;
  throw UsageError(fmt::format("'{}' is no number", word));
}

std::vector<double> numbers_of(const ordered_json& list) {
  std::vector<double> values;
  for (const ordered_json& value : list) values.push_back(number_of(value));
  return values;
}

/// What people want to read; restored from the control tensor, never from here.
ordered_json clocks_json(const UpdateOutcome& o) {
  return {{"updates_attempted", o.attempted},
          {"updates_applied", o.applied_total},
          {"updates_skipped", o.skipped},
          {"effective_tokens", o.tokens_consumed},
          {"loss_scale", exact(o.loss_scale)}};
}

ordered_json state_json(const TrainingState& s, const UpdateOutcome& outcome) {
  ordered_json workload = ordered_json::object(), tuning = ordered_json::array();
  for (const auto& [key, value] : s.workload) workload[key] = value;
  for (const auto& [problem, choice] : s.tuning)
    tuning.push_back({{"problem", problem},
                      {"implementation", choice.implementation},
                      {"library", choice.library},
                      {"time_s", exact(choice.time_s)}});
  return {{"schema", kSchema},
          {"tool_version", s.tool_version},
          {"recipe", s.recipe},
          {"update", s.update},
          {"data_position", {{"next_window", s.update}}},
          {"clocks", clocks_json(outcome)},
          {"workload", std::move(workload)},
          {"tensors", {{"file", s.tensors_file}, {"bytes", s.tensors_bytes}, {"sha256", s.tensors_sha256}}},
          {"history",
           {{"loss", exact(s.history.loss)},
            {"grad_norm", exact(s.history.grad_norm)},
            {"loss_scale", exact(s.history.loss_scale)},
            {"overflowed", s.history.overflowed}}},
          {"tuning", std::move(tuning)}};
}

TrainingState state_of_json(const ordered_json& json) {
  TrainingState s;
  s.tool_version = field<std::string>(json, "tool_version", "a text");
  s.recipe = field<std::string>(json, "recipe", "a text");
  s.update = field<std::int64_t>(json, "update", "a number of updates");
  if (s.update < 0) throw UsageError(fmt::format("key 'update' is {}, expected 0 or more", s.update));
  for (const auto& [key, value] : field(json, "workload").items())
    s.workload.emplace_back(key, value.get<std::string>());
  const ordered_json& tensors = field(json, "tensors");
  s.tensors_file = field<std::string>(tensors, "file", "a file name");
  if (s.tensors_file != fs::path(s.tensors_file).filename())
    throw UsageError(fmt::format("key 'file' is {}, expected a file of the same folder", s.tensors_file));
  s.tensors_bytes = field<std::int64_t>(tensors, "bytes", "a number of bytes");
  s.tensors_sha256 = field<std::string>(tensors, "sha256", "a text");
  const ordered_json& history = field(json, "history");
  s.history = {.loss = numbers_of(field(history, "loss")),
               .grad_norm = numbers_of(field(history, "grad_norm")),
               .loss_scale = numbers_of(field(history, "loss_scale")),
               .overflowed = field<std::vector<std::int64_t>>(history, "overflowed", "a list of updates")};
  for (const ordered_json& row : field(json, "tuning"))
    s.tuning[field<std::string>(row, "problem", "a text")] = {
        .implementation = field<std::string>(row, "implementation", "a text"),
        .library = field<std::string>(row, "library", "a text"),
        .time_s = number_of(field(row, "time_s"))};
  return s;
}

/// "mixroof/state/1.x" of this major version.
void check_schema(const fs::path& path, const ordered_json& json) {
  const bool has_schema = json.is_object() && json.contains("schema") && json.at("schema").is_string();
  const std::string schema = has_schema ? json.at("schema").get<std::string>() : "";
  if (!schema.starts_with("mixroof/state/"))
    throw UsageError(fmt::format("{}: is no saved training state (no schema mixroof/state/…)", path.string()));
  if (!schema.starts_with("mixroof/state/1."))
    throw UsageError(fmt::format("{}: has schema {}, this program reads {}; use the program that wrote it",
                                 path.string(), schema, kSchema));
}

// ---- files

void remove_other_tensors(const fs::path& folder, const std::string& current, const std::string& keep) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kTensorsStem) && name.ends_with(kTensorsEnding) && name != current && name != keep)
      fs::remove(entry.path(), ignored);
  }
}

/// A name that no file has: what state.json names stays whole until the next state.json is there.
std::string unused_tensors_file(const fs::path& folder, std::int64_t update) {
  std::string name = fmt::format("{}{}{}", kTensorsStem, update, kTensorsEnding);
  for (int again = 2; fs::exists(folder / name); ++again)
    name = fmt::format("{}{}-{}{}", kTensorsStem, update, again, kTensorsEnding);
  return name;
}

// ---- restoring

/// Where a tensor of the program comes from in another recipe's file.
class Conversion {
 public:
  Conversion(const SafetensorsFile& file, Execution& execution) : file_(file), execution_(execution) {}

  void convert_parameters() {
    for (const Program::Parameter& p : execution_.program().parameters) {
      const std::string master = p.name + ".master";
      const std::string source = file_.find(master) >= 0 ? master : p.name;
      if (p.master >= 0) convert(source, p.master);
      convert(source, p.param);
      convert(p.name + ".moment1", p.moment1);
      convert(p.name + ".moment2", p.moment2);
    }
  }

  /// Clocks; the loss scale only between recipes that both scale dynamically.
  void convert_control(bool keeps_scale) {
    const std::vector<double> saved = values(index_of("control"), "control");
    std::vector<double> control = execution_.read(execution_.program().control);
    for (const Slot s : {Slot::updates_attempted, Slot::updates_applied, Slot::updates_skipped, Slot::tokens_consumed})
      slot(control.data(), s) = slot(saved.data(), s);
    if (keeps_scale)
      for (const Slot s : {Slot::loss_scale, Slot::growth_tracker, Slot::growths, Slot::backoffs})
        slot(control.data(), s) = slot(saved.data(), s);
    execution_.write(execution_.program().control, control);
  }

  /// "param, moment1 from fp32 to fp16": what changed its format, by pair of formats.
  std::vector<std::string> report() const {
    std::vector<std::string> lines;
    for (const auto& [formats, count] : converted_) lines.push_back(fmt::format("{} tensors {}", count, formats));
    return lines;
  }

 private:
  std::size_t index_of(const std::string& name) const {
    const int index = file_.find(name);
    if (index < 0) throw UsageError(fmt::format("{}: has no tensor '{}'", file_.path().string(), name));
    return static_cast<std::size_t>(index);
  }

  std::vector<double> values(std::size_t index, const std::string& name) const {
    const StoredTensor& stored = file_.tensors()[index];
    const std::vector<unsigned char> bytes = file_.read(index);
    std::vector<double> result(static_cast<std::size_t>(stored.count()));
    decode(stored.format, bytes.data(), result.data(), stored.count());
    if (name == "control" && result.size() != kControlSlots)
      throw UsageError(fmt::format("{}: tensor 'control' has {} values, expected {}", file_.path().string(),
                                   result.size(), kControlSlots));
    return result;
  }

  void convert(const std::string& from, TensorId to) {
    const Tensor& target = execution_.program().tensors[static_cast<std::size_t>(to)];
    const std::size_t index = index_of(from);
    const StoredTensor& stored = file_.tensors()[index];
    if (stored.shape != target.shape)
      throw UsageError(fmt::format("{}: tensor '{}' has shape [{}], expected [{}]", file_.path().string(), from,
                                   fmt::join(stored.shape, ", "), fmt::join(target.shape, ", ")));
    const std::vector<double> source = values(index, from);
    refuse_overflow(source, from, target.format);
    execution_.write(to, source);
    if (stored.format != target.format)
      ++converted_[fmt::format("from {} to {}", name(stored.format), name(target.format))];
  }

  void refuse_overflow(const std::vector<double>& source, const std::string& from, Format to) const {
    std::int64_t count = 0;
    double largest = 0;
    for (const double value : source)
      if (std::isfinite(value) && !std::isfinite(round_to(to, value)))
        ++count, largest = std::max(largest, std::fabs(value));
    if (count > 0)
      throw UsageError(
          fmt::format("{}: tensor '{}' has {} values up to {:g} that {} cannot hold (largest {:g}); load it into a "
                      "recipe with a wider format",
                      file_.path().string(), from, count, largest, name(to), facts(to).max_finite));
  }

  const SafetensorsFile& file_;
  Execution& execution_;
  std::map<std::string, int> converted_;
};

void restore_same(const SafetensorsFile& file, Execution& execution) {
  const Program& program = execution.program();
  for (std::size_t i = 0; i < program.tensors.size(); ++i) {
    const Tensor& tensor = program.tensors[i];
    if (!is_saved(tensor)) continue;
    const int index = file.find(tensor.name);
    if (index < 0) throw UsageError(fmt::format("{}: has no tensor '{}'", file.path().string(), tensor.name));
    const StoredTensor& stored = file.tensors()[static_cast<std::size_t>(index)];
    if (stored.shape != tensor.shape || stored.format != tensor.format)
      throw UsageError(fmt::format("{}: tensor '{}' is {} [{}], expected {} [{}]", file.path().string(), tensor.name,
                                   name(stored.format), fmt::join(stored.shape, ", "), name(tensor.format),
                                   fmt::join(tensor.shape, ", ")));
    const std::vector<unsigned char> bytes = file.read(static_cast<std::size_t>(index));
    execution.backend().copy(execution.data(static_cast<TensorId>(i)), bytes.data(),
                             static_cast<std::int64_t>(bytes.size()));
  }
}

/// The clocks of the control tensor and state.json tell of one moment.
void check_clock(const SafetensorsFile& file, const TrainingState& state, const Execution& execution) {
  const std::int64_t attempted = execution.outcome().attempted;
  if (attempted != state.update)
    throw UsageError(fmt::format("{}: tensor 'control' stands at update {}, expected {} ({})", file.path().string(),
                                 attempted, state.update, kStateFile));
}

}  // namespace

void save_training_state(const fs::path& folder, TrainingState state, const Execution& execution,
                         const std::string& keep) {
  Backend& backend = execution.backend();
  if (backend.storage_bytes(Format::bf16, 1) != bytes_of(Format::bf16))
    throw Error(Status::not_supported,
                fmt::format("training state of device {} cannot be saved: it keeps doubles (use --device cpu)",
                            backend.facts().backend));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(Status::failed, fmt::format("cannot make folder {}: {}", folder.string(), error.message()));

  const Program& program = execution.program();
  std::vector<StoredTensor> tensors;
  std::vector<TensorId> ids;
  for (std::size_t i = 0; i < program.tensors.size(); ++i)
    if (const Tensor& tensor = program.tensors[i]; is_saved(tensor)) {
      tensors.push_back({tensor.name, tensor.format, tensor.shape});
      ids.push_back(static_cast<TensorId>(i));
    }
  const auto source = [&](std::size_t tensor, std::int64_t offset, std::span<unsigned char> out) {
    backend.copy(out.data(), static_cast<const unsigned char*>(execution.data(ids[tensor])) + offset,
                 static_cast<std::int64_t>(out.size()));
  };
  state.tensors_file = unused_tensors_file(folder, state.update);
  const WrittenFile written =
      write_safetensors(folder / state.tensors_file, tensors,
                        {{"recipe", state.recipe}, {"update", std::to_string(state.update)}}, source);
  state.tensors_bytes = written.bytes;
  state.tensors_sha256 = written.sha256;
  AtomicFile json(folder / kStateFile);
  json.write(state_json(state, execution.outcome()).dump(1) + "\n");
  json.commit();
  remove_other_tensors(folder, state.tensors_file, keep);
}

TrainingState load_training_state(const fs::path& folder) {
  const fs::path path = folder / kStateFile;
  std::ifstream stream(path);
  if (!stream || !fs::is_regular_file(path))
    throw UsageError(
        fmt::format("{}: cannot be read; --load-state takes a folder that --save-state made", path.string()));
  const ordered_json json = ordered_json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw UsageError(fmt::format("{}: is no JSON", path.string()));
  check_schema(path, json);
  TrainingState state;
  try {
    state = state_of_json(json);
  } catch (const ordered_json::exception& error) {
    throw UsageError(fmt::format("{}: {}", path.string(), error.what()));
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", path.string(), error.what()));
  }
  const std::size_t updates = static_cast<std::size_t>(std::max<std::int64_t>(state.update, 0));
  for (const std::vector<double>* list : {&state.history.loss, &state.history.grad_norm, &state.history.loss_scale})
    if (list->size() != updates)
      throw UsageError(
          fmt::format("{}: a history has {} values, expected {} (update)", path.string(), list->size(), state.update));
  const SafetensorsFile file(folder / state.tensors_file);
  if (file.bytes() != state.tensors_bytes)
    throw UsageError(fmt::format("{}: has {} bytes, {} says {}", file.path().string(), file.bytes(), kStateFile,
                                 state.tensors_bytes));
  if (const std::string found = file.sha256(); found != state.tensors_sha256)
    throw UsageError(fmt::format("{}: is damaged: SHA-256 {}, {} says {}", file.path().string(), found, kStateFile,
                                 state.tensors_sha256));
  return state;
}

std::vector<std::string> restore_training_state(const fs::path& folder, const TrainingState& state,
                                                Execution& execution) {
  const SafetensorsFile file(folder / state.tensors_file);
  const Recipe& recipe = *execution.program().recipe;
  if (state.recipe == recipe.name) {
    restore_same(file, execution);
    check_clock(file, state, execution);
    return {};
  }
  Conversion conversion(file, execution);
  conversion.convert_parameters();
  const bool keeps_scale =
      find_recipe(state.recipe).loss_scaling == LossScaling::dynamic && recipe.loss_scaling == LossScaling::dynamic;
  conversion.convert_control(keeps_scale);
  check_clock(file, state, execution);
  std::vector<std::string> report = conversion.report();
  report.insert(report.begin(), fmt::format("from recipe {}", state.recipe));
  if (recipe.loss_scaling == LossScaling::dynamic)
    report.push_back(keeps_scale ? "loss scale kept" : "loss scale starts anew");
  if (recipe.uses_fp8()) report.push_back("FP8 scales and histories start anew");
  return report;
}

}  // namespace mixroof
