// How a stored kernel case becomes problems of the product's kernels: each step is one run with its inputs, and says
// which stored array each result is.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "harness/oracle/entry.h"
#include "kernels/kernel.h"

namespace mixroof {

/// A stored array inside an operand.
struct StepOutput {
  std::size_t operand = 0;
  std::string array;                        // "out/d_x", after the prefix of the case
  std::vector<std::size_t> positions = {};  // element i of the array in the operand; empty: the same order
  double factor = 1;                        // the array is the operand times this
  /// Size of the terms whose difference is exactly zero somewhere: there the folder holds their rounding.
  double cancelled = 0;
  bool exact = false;  // equal in every order of summation: nothing but one rounding is allowed
};

struct KernelStep {
  const Kernel* kernel = nullptr;
  std::function<Problem(Format io)> problem;  // with every tensor in `io`
  std::vector<std::vector<double>> inputs;    // in operands() order; write-only ones empty
  std::vector<StepOutput> outputs;
};

/// A case of kernels/*.json.
struct KernelCase {
  const OracleFile& file;
  OracleEntry entry;
  std::string prefix;  // "layernorm/odd/"

  std::vector<double> in(const std::string& name) const { return file.values(prefix + "in/" + name); }
  std::vector<double> out(const std::string& name) const { return file.values(prefix + "out/" + name); }
  /// Throws UsageError when it is below 1.
  std::int64_t size(const std::string& key) const {
    const std::int64_t value = entry.whole(key);
    if (value < 1) entry.at(key).refuse("is below 1");
    return value;
  }
};

/// Steps for the stored kernels that the product has, by the folder's name of the kernel. Empty for another name.
std::vector<KernelStep> kernel_steps(const std::string& kernel, const KernelCase& c);

}  // namespace mixroof
