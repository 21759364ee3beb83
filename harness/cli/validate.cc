// mixroof validate: whether result files keep the contract.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "harness/cli/output.h"
#include "harness/cli/subcommand.h"
#include "harness/result/read.h"
#include "harness/result/validate.h"
#include "harness/status.h"

namespace mixroof::cli {
namespace {

struct Verdict {
  int exit_code = kExitOk;
  std::vector<std::string> faults;
  std::vector<std::string> unknown;  // pointers of keys that the schema does not describe
};

/// A file that cannot be read is wrong input; one that is read and wrong is a finding.
Verdict judge(const std::string& file) {
  Verdict verdict;
  std::string text;
  try {
    text = read_file(file);
  } catch (const UsageError& error) {
    return {.exit_code = kExitUsage, .faults = {error.what()}, .unknown = {}};
  }
  try {
    const Json document = parse_json(text, file);
    check_schema_version(document, file);
    for (const DocumentFault& fault : validate_document(document))
      verdict.faults.push_back(fmt::format("{}: {}", file, fault.text()));
    verdict.unknown = unknown_keys(document);
  } catch (const UsageError& error) {
    verdict.faults = {error.what()};
  }
  if (!verdict.faults.empty()) verdict.exit_code = kExitFinding;
  return verdict;
}

int validate_files(const std::vector<std::string>& files, bool verbose) {
  int worst = kExitOk;
  for (const std::string& file : files) {
    const Verdict verdict = judge(file);
    std::string text;
    for (const std::string& fault : verdict.faults) text += fault + "\n";
    if (verdict.faults.empty()) text = fmt::format("{}: valid\n", file);
    if (verbose)
      for (const std::string& pointer : verdict.unknown)
        text += fmt::format("{}: {}: unknown key, ignored\n", file, pointer);
    print(text);
    worst = std::max(worst, verdict.exit_code);
  }
  return worst;
}

Action declare(CLI::App& app) {
  struct Options {
    std::vector<std::string> files;
    bool verbose = false;
  };
  const auto options = std::make_shared<Options>();
  app.add_option("files", options->files, "Result documents")->required()->option_text("FILE...");
  app.add_flag("--verbose", options->verbose, "Also list keys that this version does not know");
  return [options] { return validate_files(options->files, options->verbose); };
}

}  // namespace

Subcommand validate_subcommand() {
  return {.name = "validate",
          .summary = "Check result documents against the schema and its rules",
          .examples = "mixroof validate results/local/laptop.json\nmixroof validate --verbose base.json new.json",
          .declare = declare};
}

}  // namespace mixroof::cli
