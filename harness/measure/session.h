// One run from beginning to end: ceilings, whole updates, numerics, memory, isolated kernels, ceilings again. Each pass answers one
// question; what is finished is in the document at once.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/measure/run_document.h"

namespace mixroof {

/// What the memory pass of one recipe, run in a process of its own, saw; or why it could not.
struct MemoryPassResult {
  std::optional<MemoryObservation> seen;
  std::string reason;
};

class RunStates;

struct SessionServices {
  /// Runs the memory pass of a recipe elsewhere, with the choices made by timing so far.
  std::function<MemoryPassResult(const Recipe& recipe, const TuningRecord& tuning)> memory_pass;
  /// Training state to load and save; null: none. Its tuning record has been replayed.
  RunStates* states = nullptr;
  /// Sections that the caller knows: run, tool, environment, host.
  std::function<void(Document& document)> describe;
};

class Session {
 public:
  Session(RunConfig config, const TokenData& data, Backend& backend, std::filesystem::path out, RunEvents events,
          SessionServices services);

  /// Measures and writes the document. Returns the run's status; an interrupted run has kept what was finished.
  RunStatus run();
  const Document& document() const { return document_; }

 private:
  void measure_ceilings(double budget_s, const char* what);
  void measure_steps(double budget_s);
  void measure_numerics();
  void measure_memory();
  void measure_kernels(double budget_s);
  Roofline roofline() const;
  void put_steps(const std::vector<StepRecord>& steps);
  void put_in_step();
  void put_kernels();
  void put_workload();
  void checkpoint();
  double seconds_left() const;
  bool stopped() const { return events_.stopped(); }

  RunConfig config_;
  const TokenData& data_;
  Backend& backend_;
  std::filesystem::path out_;
  RunEvents events_;
  SessionServices services_;
  Document document_;
  double start_s_ = 0;
  std::vector<Ceiling> ceilings_;
  std::vector<StepRecord> steps_;
  Trajectory fp32_;  // where it was not among the recipes
  std::optional<NumericsPass> numerics_;
  std::map<std::string, MemoryPassResult> memory_;
  std::vector<KernelRecord> kernels_;
};

}  // namespace mixroof
