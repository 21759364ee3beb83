// What FP32 computes in one update, kept to compare another recipe with: every tensor as the op that wrote it left it,
// and for each parameter its gradient, its step and both moments. Of large tensors every n-th value when memory is
// short.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "harness/execute/execution.h"
#include "harness/observe/op_place.h"

namespace mixroof {

/// Values 0, stride, 2·stride, … of a tensor.
struct SparseValues {
  std::vector<float> values;
  std::int64_t stride = 1;
};

/// What the optimizer did to one parameter.
struct RecordedUpdate {
  SparseValues grad, step, moment1, moment2;  // step: after - before
  double grad_factor = 1;                     // unscale × clip
};

class ReferenceRecord {
 public:
  explicit ReferenceRecord(std::int64_t stride) : stride_(stride) {}

  void put(std::int64_t micro_batch, const std::string& op, const std::string& tensor, std::span<const double> values);
  /// Null when FP32 has no such tensor there.
  const SparseValues* find(std::int64_t micro_batch, const std::string& op, const std::string& tensor) const;

  SparseValues sparse(std::span<const double> values) const;
  RecordedUpdate& update_of(const std::string& parameter) { return updates_[parameter]; }
  const RecordedUpdate& update_of(const std::string& parameter) const { return updates_.at(parameter); }
  std::int64_t stride() const { return stride_; }

 private:
  std::int64_t stride_;  // of large tensors
  std::unordered_map<std::string, SparseValues> tensors_;
  std::unordered_map<std::string, RecordedUpdate> updates_;
};

/// The stride with which a record of this program takes at most `bytes`; odd, so that it visits every column of a
/// matrix.
std::int64_t stride_that_fits(const Program& fp32, std::int64_t bytes);

/// Fills a record while FP32 runs an update; only tensors called as in `wanted` (all of another program's).
class ReferenceRecorder : public OpObserver {
 public:
  ReferenceRecorder(const Execution& fp32, std::set<std::string> wanted, ReferenceRecord& record)
      : execution_(fp32), locator_(fp32.program()), wanted_(std::move(wanted)), record_(record) {}
  void before(const Op& op) override;
  void after(const Op& op) override;

 private:
  void record_update(const Program::Parameter& parameter);

  const Execution& execution_;
  OpLocator locator_;
  std::set<std::string> wanted_;
  ReferenceRecord& record_;
  std::vector<double> before_update_;
};

}  // namespace mixroof
