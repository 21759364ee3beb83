#include "benches/bench_main.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/cli/exit_codes.h"
#include "harness/cli/run_options.h"
#include "harness/measure/describe.h"
#include "harness/measure/device_document.h"
#include "harness/measure/run_document.h"
#include "harness/measure/tool_facts.h"
#include "harness/result/write.h"

namespace mixroof {
namespace {

using cli::RunOptions;

/// Flags under the names that `mixroof run` has for them, with this prefix and underscores.
constexpr std::string_view kPrefix = "--mixroof_";

std::string flag_of(std::string option) {
  for (char& c : option)
    if (c == '-') c = '_';
  return std::string(kPrefix) + option;
}

void declare_flags(CLI::App& app, const BenchProgram& program, RunOptions& o) {
  const auto add = [&app](const char* option, auto& value, const char* help) {
    return app.add_option(flag_of(option), value, help);
  };
  app.set_help_flag("");
  app.allow_extras();
  add("out", o.out, "result document, as mixroof run writes it (default: none)");
  add("device", o.device, "cpu or cuda[:N]")->capture_default_str();
  add("seed", o.seed, "of operands, initial parameters and synthetic data")->capture_default_str();
  if (program.has_workload) {
    add("model", o.model, "a name (mixroof list models) or a Hugging Face config.json")->capture_default_str();
    add("recipes", o.recipes, "names (mixroof list recipes), 'all', or 'main' for all but the diagnostic ones")
        ->capture_default_str();
    add("tokens-per-update", o.tokens_per_update, "positions of one update")->capture_default_str();
    add("seq", o.seq, "positions of one sequence")->capture_default_str();
    add("micro-batch", o.micro_batch, "sequences of one forward and backward (default: all of an update)");
    add("data", o.data, "training text: any file (bytes as tokens) or a .bin token file (default: synthetic)");
    add("vocab", o.vocab, "vocabulary of a .bin file without header");
    add("document-end", o.document_end, "token that ends a document");
    add("checkpointing", o.checkpointing, "activations to compute again in the backward phase: none or layer")
        ->capture_default_str();
  }
  if (program.updates > 0)
    add("updates", o.updates, "updates that each recipe is timed over; --benchmark_min_time does not change it")
        ->capture_default_str();
  app.footer("Examples:\n" + program.examples);
}

/// A message about an option of `mixroof run`, in the words of this program.
std::string in_words_of(const CLI::App& app, std::string message) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string flag = option->get_name();
    if (!flag.starts_with(kPrefix)) continue;
    std::string word = "--" + flag.substr(kPrefix.size());
    for (char& c : word)
      if (c == '_') c = '-';
    for (std::size_t at = 0; (at = message.find(word, at)) != std::string::npos; at += flag.size())
      message.replace(at, word.size(), flag);
  }
  return message;
}

void parse(CLI::App& app, int argc, const char* const* argv) {
  const std::string help = app.get_name() + " --help";
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    throw UsageError(fmt::format("{} ({})", error.what(), help));
  }
  const std::vector<std::string> extras = app.remaining();
  if (extras.empty()) return;
  std::vector<std::string> valid;
  for (const CLI::Option* option : app.get_options()) valid.push_back(option->get_name());
  throw_unknown("flag", extras.front().substr(0, extras.front().find('=')), valid, help);
}

/// Google Benchmark calls this for a value that a flag of its own cannot take, and would then exit with 0.
void refuse_benchmark_flag() {
  fmt::print(stderr, "{0}: a --benchmark_ flag has a value that it cannot take; see {0} --help\n",
             program_invocation_short_name);
  std::exit(kExitUsage);
}

bool asks_for_help(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (const std::string_view word = argv[i]; word == "--help" || word == "-h") return true;
  return false;
}

/// Google Benchmark's own display, and a hook after each benchmark. What the library says of the filter stays here.
class Reporter : public benchmark::BenchmarkReporter {
 public:
  explicit Reporter(std::function<void(const std::string& name)> on_reported)
      : display_(benchmark::CreateDefaultDisplayReporter()), on_reported_(std::move(on_reported)) {
    SetErrorStream(&complaints_);
  }

  bool ReportContext(const Context& context) override { return display_->ReportContext(context); }
  void ReportRuns(const std::vector<Run>& runs) override {
    display_->ReportRuns(runs);
    on_reported_(runs.front().run_name.function_name);
  }
  void Finalize() override { display_->Finalize(); }

  std::string complaint() const { return complaints_.str().substr(0, complaints_.str().find('\n')); }

 private:
  std::unique_ptr<benchmark::BenchmarkReporter> display_;
  std::function<void(const std::string& name)> on_reported_;
  std::ostringstream complaints_;
};

/// What `mixroof run` would do with the same options, its messages in the words of this program.
std::unique_ptr<Bench> make_bench(const BenchProgram& program, const CLI::App& app, const RunOptions& options) {
  try {
    RunConfig config = cli::make_config(options, command_line());
    std::optional<TokenData> data;
    if (program.has_workload) data = cli::open_data(options, config);
    return std::make_unique<Bench>(config, data, options.out, program.has_workload ? config.model.name : program.name);
  } catch (const UsageError& error) {
    throw UsageError(in_words_of(app, error.what()));
  } catch (const Error& error) {
    throw Error(error.status(), in_words_of(app, error.what()));
  }
}

}  // namespace

Bench::Bench(RunConfig config, std::optional<TokenData> data, std::string out, const std::string& label)
    : config_(std::move(config)),
      data_(std::move(data)),
      out_(std::move(out)),
      start_s_(steady_clock().now_s()),
      backend_(cli::open_device(config_)) {
  if (!out_.empty()) test_writable(out_);
  describe_run(document_, label, config_.command, config_.seed, backend_->facts());
  document_.set("device", device_json(backend_->facts(), probe_arithmetic(*backend_)));
  if (data_) put_workload(0);
}

Bench::~Bench() {
  // Registered benchmarks refer to this run and to its backend.
  benchmark::ClearRegisteredBenchmarks();
  benchmark::Shutdown();
}

void Bench::add(const std::string& name, std::function<std::unique_ptr<Subject>()> make, const GbenchOptions& options,
                std::function<void(const GbenchRecord&)> put_rows) {
  benchmarks_[name] = {register_subject(name, std::move(make), options), std::move(put_rows)};
}

void Bench::put_workload(std::int64_t updates) {
  const auto effective = static_cast<double>(effective_tokens(window_of(config_, data(), 0)));
  document_.set("workload", workload_json(config_, data(), updates, effective));
}

int Bench::run() {
  Reporter reporter([this](const std::string& name) { finish(name); });
  if (benchmark::RunSpecifiedBenchmarks(&reporter) == 0)
    throw UsageError(reporter.complaint() + "; give another --benchmark_filter (names: --benchmark_list_tests)");
  if (!any_reported_) return kExitOk;  // only listed
  document_.finish(RunStatus::complete, steady_clock().now_s() - start_s_);
  if (!out_.empty()) write_document(out_, document_.json());
  return document_exit_code(document_.json(), RunStatus::complete);
}

void Bench::finish(const std::string& name) {
  const Registered& benchmark = benchmarks_.at(name);
  any_reported_ = true;
  benchmark.record->subject.reset();
  benchmark.put_rows(*benchmark.record);
  document_.set_tuning(tuning_json(backend_->tuning()));
  if (!out_.empty()) checkpoint_document(out_, document_.json());
}

int bench_main(int argc, char** argv, const BenchProgram& program) {
  return cli::exit_code_of(program.name, [&] {
    RunOptions options;
    if (program.updates > 0) options.updates = program.updates;
    CLI::App app(program.summary, program.name);
    declare_flags(app, program, options);
    if (asks_for_help(argc, argv)) {
      std::cout << app.help() << "\nGoogle Benchmark's own flags:\n" << std::flush;
      benchmark::PrintDefaultHelp();
      return static_cast<int>(kExitOk);
    }
    benchmark::Initialize(&argc, argv, refuse_benchmark_flag);
    parse(app, argc, argv);
    const std::unique_ptr<Bench> bench = make_bench(program, app, options);
    program.add_benchmarks(*bench);
    return bench->run();
  });
}

}  // namespace mixroof
