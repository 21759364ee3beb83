// mixroof run: measures one workload in several recipes and writes the result document.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>

#include "harness/cli/child_process.h"
#include "harness/cli/output.h"
#include "harness/cli/progress.h"
#include "harness/cli/run_options.h"
#include "harness/cli/run_summary.h"
#include "harness/cli/subcommand.h"
#include "harness/measure/describe.h"
#include "harness/measure/run_states.h"
#include "harness/measure/session.h"
#include "harness/measure/tool_facts.h"
#include "harness/result/read.h"
#include "harness/result/validate.h"
#include "harness/result/write.h"

namespace mixroof::cli {
namespace {

constexpr std::int64_t kObservedUpdates = 2;

// Signal handlers may touch nothing else. The first signal ends the run after the current sample; the second ends the
// process at once, which is safe since what is on the disk is always a whole document.
volatile std::sig_atomic_t signals_seen = 0;
void on_signal(int) {
  if (signals_seen != 0) std::_Exit(kExitInterrupted);
  signals_seen = 1;
}

void catch_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

/// The child's side of the memory pass: choices come in on stdin, the observation goes out on stdout.
int run_memory_pass(const RunOptions& options) {
  RunConfig config = make_config(options, {});
  const TokenData data = open_data(options, config);
  const std::unique_ptr<Backend> backend = open_device(config);
  const std::string choices((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
  if (!choices.empty()) read_tuning(parse_json(choices, "stdin"), backend->tuning());
  const Recipe& recipe = *config.recipes.front();
  std::vector<Window> windows;
  for (std::int64_t update = 0; update < kObservedUpdates; ++update) windows.push_back(window_of(config, data, update));
  const MemoryObservation seen = observe_memory([&] { return config.lower_for(recipe, backend->target()); }, *backend,
                                                windows, config.seed, config.loss_scale_of(recipe));
  print(document_text(memory_json(seen, config.model.parameters())));
  return kExitOk;
}

MemoryPassResult spawn_memory_pass(std::vector<std::string> command, const Recipe& recipe, const TuningRecord& tuning) {
  command.front() = own_executable();
  command.insert(command.end(), {"--memory-pass", std::string(recipe.name)});
  try {
    const ChildResult child = run_child(command, document_text(tuning_json(tuning)));
    if (child.exit_code != kExitOk)
      return {std::nullopt, fmt::format("the memory pass ended with exit code {}", child.exit_code)};
    return {read_memory(parse_json(child.output, "memory pass")), {}};
  } catch (const std::exception& error) {
    return {std::nullopt, fmt::format("the memory pass failed: {}", error.what())};
  }
}

std::string default_out() {
  std::string stamp = utc_text(unix_seconds());
  std::erase_if(stamp, [](char c) { return c == '-' || c == ':'; });
  return fmt::format("mixroof-{}.json", stamp);
}

int run(const RunOptions& options, const std::vector<std::string>& command) {
  if (!options.memory_pass.empty()) return run_memory_pass(options);
  RunConfig config = make_config(options, command);
  const TokenData data = open_data(options, config);
  const std::string out = options.out.empty() ? default_out() : options.out;
  test_writable(out);
  const std::unique_ptr<Backend> backend = open_device(config);
  for (const Recipe* recipe : config.recipes) config.lower_for(*recipe, backend->target());  // impossible shapes are found here
  RunStates states(config, data);
  states.replay_tuning(backend->tuning());
  catch_signals();

  Progress progress;
  const auto start = std::chrono::steady_clock::now();
  RunEvents events;
  events.show = [&](const std::string& what, std::size_t done, std::size_t total) {
    const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    progress.show({.what = what,
                   .done = done,
                   .total = total,
                   .noise = std::nullopt,
                   .time_left_s = std::max(config.budget_s - elapsed, 0.0)});
  };
  events.finish_case = [&](const std::string& line) { progress.finish_case(line); };
  events.stop = [] { return signals_seen != 0; };
  SessionServices services;
  services.states = &states;
  services.memory_pass = [&](const Recipe& recipe, const TuningRecord& tuning) {
    return spawn_memory_pass(command, recipe, tuning);
  };
  services.describe = [&](Document& document) {
    describe_run(document, config.model.name, command, config.seed, backend->facts());
  };

  Session session(config, data, *backend, out, events, services);
  const RunStatus status = session.run();
  progress.clear();
  print(run_summary(session.document().json(), output_width()));
  print(fmt::format("\nresult document: {}{}\n", out,
                    status == RunStatus::interrupted ? " (interrupted; what was finished is in it)" : ""));
  return document_exit_code(session.document().json(), status);
}

Action declare(CLI::App& app) {
  const auto options = std::make_shared<RunOptions>();
  declare_run_options(app, *options);
  return [options] { return run(*options, command_line()); };
}

}  // namespace

Subcommand run_subcommand() {
  return {.name = "run",
          .summary = "Measure whole updates, their kernels and this machine's ceilings in several recipes",
          .examples =
              "mixroof run --data book.txt --out result.json\n"
              "mixroof run --model gpt2-124m --seq 64 --tokens-per-update 256 --recipes fp32,bf16-master --budget 5m\n"
              "mixroof run --parts ceilings --budget 10s\n"
              "mixroof run --updates 200 --budget 10m --save-state state --save-every 50\n"
              "mixroof run --updates 400 --budget 10m --load-state state --save-state state",
          .declare = declare};
}

}  // namespace mixroof::cli
