// A program bound to a backend: its tensors placed, its plans prepared, updates run in order with a mark at each change of
// phase. Nothing else happens while an update runs: no allocation in arena placement, no host value read.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/program/bytes.h"
#include "harness/program/program.h"
#include "kernels/control.h"

namespace mixroof {

enum class Placement : std::uint8_t {
  arena,      // one allocation, packed: for timing
  per_tensor  // each tensor an allocation of its own with its class: for the memory pass
};

/// Everything [micro_batch * seq], row-major; a target of -1 carries no loss. The last two are there when documents are
/// packed into rows: each place's position in its document, and the place in its row where that document begins.
struct MicroBatch {
  std::vector<std::int32_t> tokens, targets;
  std::vector<std::int32_t> position_ids = {}, first_key = {};
};
using Window = std::vector<MicroBatch>;  // the micro-batches of one update
std::int64_t effective_tokens(const Window& window);
/// Query-key pairs that attention within documents meets: Σ over positions of (place - first_key + 1).
std::int64_t attention_pairs(const MicroBatch& micro_batch, std::int64_t seq);

struct UpdateTimes {
  double total_s = 0;
  std::array<double, kPhaseCount> phase_s = {};
};

/// The control tensor after an update, by name.
struct UpdateOutcome {
  bool applied = false;
  double loss = 0;            // per effective token, nats; NaN for a window without effective tokens
  double grad_norm = 0, clip_coefficient = 1, learning_rate = 0, loss_scale_used = 1, loss_scale = 1;
  bool found_inf = false, state_nonfinite = false, scale_exhausted = false;
  std::int64_t attempted = 0, applied_total = 0, skipped = 0, growths = 0, backoffs = 0, tokens_consumed = 0;
};

/// Watches ops. Off (null) while time is taken.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void before(const Op& op) = 0;
  virtual void after(const Op& op) = 0;  // before dead tensors are freed
};

class Execution {
 public:
  /// Allocates and prepares everything. `memory` (null: the backend's own) is what tensors come from. Throws
  /// Error(out_of_memory) with bytes needed and bytes free before anything is allocated, Error(not_supported) with the
  /// reason of the first op that the backend refuses.
  Execution(Program program, Backend& backend, Placement placement, MemoryResource* memory = nullptr);
  ~Execution();
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  /// State at the start of training: parameters (fp32 values in the program's order) into param and master, moments zero,
  /// FP8 scales 1, clocks 0.
  void initialize(std::span<const std::vector<float>> parameters, double initial_loss_scale);

  /// One attempted update. Blocking; times by the backend's marks. A packed program takes packed micro-batches only and
  /// any other none of them (std::logic_error).
  UpdateTimes run_update(const Window& window);
  UpdateOutcome outcome() const;

  void set_observer(OpObserver* observer) { observer_ = observer; }

  const Program& program() const { return program_; }
  const BytePlan& bytes() const { return plan_; }
  Backend& backend() const { return backend_; }
  /// Values of a tensor that is alive (persistent ones always are).
  std::vector<double> read(TensorId tensor) const;
  void write(TensorId tensor, std::span<const double> values);
  /// What runs an op's problem: implementation text and whether it is emulated.
  const Plan& plan_of(const Op& op) const;
  /// Address of a live tensor, for observers that read it on the CPU.
  void* data(TensorId tensor) const { return pointers_[static_cast<std::size_t>(tensor)]; }

 private:
  struct BoundOp {
    const Op* op;
    const Plan* plan;
  };
  void refuse_if_too_big() const;
  void prepare_plans();
  void place();
  void allocate(TensorId tensor);
  void free(TensorId tensor) noexcept;
  void begin_ranges(const Lifetimes::AtOp& at);
  void end_ranges(std::span<const TensorId> tensors);
  void run_section(SectionKind kind);
  void run_op(const BoundOp& bound);
  void enter_phase(Phase phase);
  void set_slot(Slot slot, double value);
  void write_inputs(const MicroBatch& micro_batch);
  std::int64_t storage_bytes(TensorId tensor) const;

  Program program_;
  Backend& backend_;
  MemoryResource& memory_;
  Placement placement_;
  BytePlan plan_;
  Lifetimes lifetimes_;
  std::vector<std::pair<std::string, std::unique_ptr<Plan>>> plans_;
  std::array<std::vector<BoundOp>, kSectionCount> bound_;
  std::vector<void*> pointers_;   // by tensor; null while not alive
  void* arena_ = nullptr;
  OpObserver* observer_ = nullptr;
  std::vector<Phase> marked_;     // phase that starts at mark i
};

}  // namespace mixroof
