// What the bench binaries share: flags, Google Benchmark's run, the result document. A new binary fills a BenchProgram
// and hands it to bench_main(); its flags, help, errors and document follow.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "harness/backend/backend.h"
#include "harness/execute/token_data.h"
#include "harness/measure/gbench_adapter.h"
#include "harness/measure/run_config.h"
#include "harness/result/document.h"

namespace mixroof {

/// One run of a bench binary: its workload, its benchmarks, its document.
class Bench {
 public:
  /// `data`: nothing for a program without a workload. `out`: empty for no file. `label` starts the document's run id.
  Bench(RunConfig config, std::optional<TokenData> data, std::string out, const std::string& label);
  ~Bench();
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  const RunConfig& config() const { return config_; }
  const TokenData& data() const { return data_.value(); }
  Backend& backend() { return *backend_; }
  Document& document() { return document_; }

  /// Registers a benchmark. `put_rows` is called whenever its runs were reported, and puts them into document().
  void add(const std::string& name, std::function<std::unique_ptr<Subject>()> make, const GbenchOptions& options,
           std::function<void(const GbenchRecord&)> put_rows);
  /// Sets the document's workload with the updates that each recipe attempted.
  void put_workload(std::int64_t updates);

  /// Runs what --benchmark_filter matches and writes the document. Returns the exit code; UsageError when nothing
  /// matches.
  int run();

 private:
  struct Registered {
    std::shared_ptr<GbenchRecord> record;
    std::function<void(const GbenchRecord&)> put_rows;
  };
  void finish(const std::string& name);

  RunConfig config_;
  std::optional<TokenData> data_;
  std::string out_;
  double start_s_;
  std::unique_ptr<Backend> backend_;
  Document document_;
  std::map<std::string, Registered> benchmarks_;
  bool any_reported_ = false;
};

struct BenchProgram {
  std::string name;           // "bench_kernels"
  std::string summary;        // one sentence for --help
  std::string examples;       // lines of --help
  bool has_workload = false;  // takes model, recipes, data, …
  std::int64_t updates = 0;   // default of --mixroof_updates; 0: the program has no such flag
  std::function<void(Bench&)> add_benchmarks;
};

/// main() of a bench binary: exit codes as in harness/status.h.
int bench_main(int argc, char** argv, const BenchProgram& program);

}  // namespace mixroof
