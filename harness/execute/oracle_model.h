// A small model of an oracle folder with its whole updates: configuration, initial parameters, windows and hyperparameters
// of each variant, all from the manifest (gpt/*.json, layout as the oracle's README describes it). Parameters that the
// program keeps fused are joined from the oracle's arrays.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "harness/execute/execution.h"
#include "harness/execute/oracle_file.h"
#include "harness/program/lower.h"

namespace mixroof {

/// An array of the oracle inside a parameter of the model.
struct OraclePart {
  std::string name;            // as the manifest's `order` names it
  std::int64_t offset = 0;     // values from the start of the parameter
  std::int64_t count = 0;
};

struct OracleVariant {
  std::string name;
  Batch batch;
  LowerOptions options;
  std::vector<std::vector<float>> parameters;  // initial, in the model's order
  std::vector<Window> windows;                 // one an update
  nlohmann::json expected;                     // the variant as the manifest has it: losses, norms, yardsticks, …
};

class OracleModel {
 public:
  /// `stem` is the path without ending ("DIR/gpt/llama"). Throws UsageError naming the file and what is missing,
  /// contradictory or of a family without a lowering.
  explicit OracleModel(const std::string& stem);

  const OracleFile& file() const { return file_; }
  const Model& model() const { return model_; }
  /// In alphabetical order.
  std::vector<std::string> variant_names() const;
  /// Throws UsageError for an unknown name and for what the file contradicts.
  OracleVariant variant(const std::string& name) const;

  /// The oracle's arrays that make up each parameter of parameter_specs(model()).
  const std::vector<std::vector<OraclePart>>& parts() const { return parts_; }
  /// Values of a parameter stored under PREFIX/<name of each part>; empty when one of them is not stored.
  std::vector<double> values(std::string_view prefix, std::size_t parameter) const;

 private:
  void read_model();
  void read_parts();
  MicroBatch micro_batch(const nlohmann::json& arrays, const Batch& batch) const;
  LowerOptions options(const nlohmann::json& variant) const;
  std::vector<std::vector<float>> initial_parameters(const nlohmann::json& variant) const;

  OracleFile file_;
  Model model_;
  std::vector<ParameterSpec> specs_;
  std::vector<std::vector<OraclePart>> parts_;
};

}  // namespace mixroof
