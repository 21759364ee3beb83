// Where in an update an op stands, and which of its tensors carry numbers worth watching.
#pragma once

#include <string>
#include <vector>

#include "harness/program/program.h"

namespace mixroof {

/// Counted from 1 as the clocks are; micro_batch 0: the update itself. `layer` is the model's number (h.0 is 0), -1
/// outside.
struct Place {
  std::int64_t update = 0, micro_batch = 0;
  Phase phase = Phase::forward;
  int layer = -1;
  std::string op, tensor;
};

/// Follows a program through one update. Call enter() with each op before it runs.
class OpLocator {
 public:
  explicit OpLocator(const Program& program) : program_(program) {}

  void start_update(std::int64_t number) { update_ = number; }
  void enter(const Op& op);
  std::int64_t micro_batch() const { return micro_batch_; }
  Place place(const Op& op, std::string tensor) const;

 private:
  const Program& program_;
  std::int64_t update_ = 0, micro_batch_ = 0;
};

/// Values of an op's output: `count` of `tensor` from `offset` on.
struct OpOutput {
  TensorId tensor = -1;
  std::int64_t offset = 0, count = 0;
};
/// What an op writes, without token ids, workspaces and scaling state.
std::vector<OpOutput> number_outputs(const Program& program, const Op& op);

/// The parameter that an op of the optimizer updates; null for other ops.
const Program::Parameter* optimized_parameter(const Program& program, const Op& op);

}  // namespace mixroof
