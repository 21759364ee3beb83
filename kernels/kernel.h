// The interface of a kernel: one operation with its problem, exact cost, plain double-precision reference, error limit
// and implementations per backend. A kernel is a folder with one line in kernels/CMakeLists.txt; the registry that this
// line generates is all that `list`, `check`, `run`, the benches and the roofline read.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/backend/facts.h"
#include "harness/numeric/format.h"
#include "harness/numeric/recipe.h"
#include "harness/status.h"

namespace mixroof {

/// Everything that decides what is computed and what it costs; equal problems are the same isolated kernel.
struct Problem {
  std::string kernel;                                       // "matmul"
  std::string variant;                                      // "forward", "dgrad", …: a word of the kernel's own
  std::vector<std::pair<std::string, std::int64_t>> shape;  // in the kernel's own order, also 0/1 flags (bias=1)
  std::vector<Format> formats;                              // one per operand, in operands() order
  bool accumulate = false;                                  // add to what the outputs hold (each kernel says which)
  std::vector<std::pair<std::string, double>> constants;    // constants of the program: eps, beta1, …

  std::int64_t dim(std::string_view key) const;             // throws std::logic_error when absent
  std::int64_t dim_or(std::string_view key, std::int64_t otherwise) const;
  double constant(std::string_view key) const;              // throws std::logic_error when absent
  bool operator==(const Problem&) const = default;

  /// "rows=3,width=769": the form that `mixroof check --problem` takes (with the variant in front: "backward,rows=3,…").
  std::string shape_text() const;
  /// Stable identity for documents and tuning records: kernel/variant/shape/formats/accumulate (constants left out).
  std::string id() const;
};

enum class Access : std::uint8_t { read, write, read_write };

/// How a check or an isolated timing fills an operand that is read.
struct Fill {
  enum class Kind : std::uint8_t {
    normal,     // mean `offset`, standard deviation `scale`
    positive,   // |normal| * scale + offset: second moments, reciprocal deviations
    tokens,     // whole numbers in [0, limit)
    targets,    // as tokens, and about one in eight is -1 (masked)
    constant,   // `offset` everywhere
    control,    // the control tensor in the middle of a healthy run (kernels/control.h)
    documents,  // where each place's document begins in its row of `limit` places; documents have `scale` places, but for
                // one, at random, that gets the rest of the row
  };
  Kind kind = Kind::normal;
  double scale = 1.0;
  double offset = 0.0;
  std::int64_t limit = 0;
  /// Largest whole number for which every sum of this kernel stays exact in fp32 and in the operand's format; 0: the
  /// kernel has no exact-integer check.
  int exact_limit = 0;
};

struct Operand {
  std::string name;
  Access access = Access::read;
  Format format = Format::fp32;
  std::vector<std::int64_t> extent;  // row-major
  Fill fill = {};

  std::int64_t count() const;        // product of the extent, checked
  std::int64_t bytes() const;
};

/// Exact counts. A multiply-add is two FLOPs; `useful` is what the mathematics needs, `padded` what is executed with
/// padding (equal where nothing is padded). Indexed by Format, the format of the inputs.
struct Cost {
  std::array<std::int64_t, kFormatCount> useful_flops = {};
  std::array<std::int64_t, kFormatCount> padded_flops = {};
  std::int64_t bytes_read = 0;       // compulsory: each operand once
  std::int64_t bytes_written = 0;

  std::int64_t total_useful_flops() const;
  void add_flops(Format format, std::int64_t flops);  // useful and padded alike
};

/// Where the time of an update is booked (cost{…} of a step in the result document).
enum class CostCategory : std::uint8_t { matmul, attention, cast, quantize, scaling_check, optimizer, other };
std::string_view name(CostCategory category);

/// One operand as the double-precision reference sees it. Read operands arrive filled, also read_write ones.
struct RefOperand {
  double* data = nullptr;
  /// Yardstick of rounding for each output element (for a sum: the sum of magnitudes of its terms); null when not wanted.
  double* magnitude = nullptr;
  std::int64_t count = 0;
};

/// A variant with a shape: what `check` tries in every recipe.
struct Case {
  std::string variant;
  std::vector<std::pair<std::string, std::int64_t>> shape;
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual std::string_view name() const = 0;
  virtual std::string_view summary() const = 0;
  virtual CostCategory category() const { return CostCategory::other; }
  /// Operands in the order of Problem::formats and of Launch::operands.
  virtual std::vector<Operand> operands(const Problem& problem) const = 0;
  /// FLOPs are the kernel's own count; bytes default to every operand once (read_write counts on both sides).
  virtual Cost cost(const Problem& problem) const = 0;
  /// Scratch bytes the target's implementation needs; pure, so that a plan needs no device.
  virtual std::int64_t workspace_bytes(const Problem&, const Target&) const { return 0; }
  /// Plain double precision, to be checked by hand. With `magnitude` set it fills the yardstick of every output.
  virtual void reference(const Problem& problem, std::span<const RefOperand> operands) const = 0;
  /// Largest |got - reference| allowed for one output element; the kernel's header says where it comes from.
  virtual double limit(const Problem& problem, std::size_t operand, double reference, double magnitude) const = 0;
  /// Makes inputs that depend on others consistent (statistics of the same x, lse of the same q and k), after the fill.
  /// `inputs[i]` holds operand i; write-only operands are empty.
  virtual void complete_inputs(const Problem&, std::span<std::vector<double>>) const {}
  /// Sizes around tile and vector widths, an odd one, an empty one.
  virtual std::vector<Case> cases() const = 0;
  /// The problem of a case in a recipe; nothing when the recipe does not use it (a cast in fp32). Throws UsageError naming
  /// the dimension when the shape is impossible.
  virtual std::optional<Problem> problem(const Recipe& recipe, const Case& c) const = 0;

 protected:
  /// A cost whose bytes are every operand once.
  Cost compulsory_bytes(const Problem& problem) const;
};

/// Half a unit in the last place of `format` at `reference`, plus half the smallest subnormal: what one rounding may cost.
double rounding_limit(Format format, double reference);

/// What a plan needs for one execution. Operand pointers are in operands() order; `workspace` holds workspace_bytes.
struct Launch {
  std::span<void* const> operands;
  void* workspace = nullptr;
  void* queue = nullptr;  // the backend's stream; unused on the CPU
};

/// Owns all set-up of one problem. run() only enqueues (CPU: computes), allocates nothing, reads no host argument that
/// changes between updates.
class Plan {
 public:
  virtual ~Plan() = default;
  virtual void run(const Launch& launch) const = 0;
  /// What runs, for the document: "mixroof avx2 6x16", "openblas 0.3.21 sgemm".
  virtual std::string implementation() const = 0;
  /// Named format stored and rounded as named, arithmetic in a wider one.
  virtual bool emulated() const { return false; }
};

struct PrepareContext {
  const DeviceFacts& facts;
  void* queue = nullptr;
};

/// One way to run a kernel on a backend. Several ways of one kernel compete: the backend times those that support a
/// problem and records the choice.
struct Implementation {
  std::string_view kernel;
  std::string_view backend;
  std::string_view name;  // "mixroof", "openblas", "onednn"
  Support (*supports)(const Problem& problem, const DeviceFacts& facts);
  std::unique_ptr<Plan> (*prepare)(const Problem& problem, const PrepareContext& context);
};

}  // namespace mixroof
