// A backend: allocates, copies, runs plans in order, marks time, chills the cache, tells facts about its device, or says
// no with a reason. To add one: implement this interface and pass harness/backend/conformance_test.cc.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "harness/backend/facts.h"
#include "harness/backend/tuning.h"
#include "kernels/kernel.h"

namespace mixroof {

/// Allocates device bytes by class. Wrappers (the ledger, limits) stack over the backend's own.
class MemoryResource {
 public:
  virtual ~MemoryResource() = default;
  /// 64-byte aligned (or better). `bytes` may be 0. Throws Error(out_of_memory) with the bytes asked for.
  virtual void* allocate(std::int64_t bytes, TensorClass tensor_class) = 0;
  virtual void deallocate(void* pointer, std::int64_t bytes, TensorClass tensor_class) noexcept = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const DeviceFacts& facts() const = 0;
  virtual Target target() const = 0;

  /// Bytes that `count` values of `format` occupy on this backend (the reference backend keeps doubles).
  virtual std::int64_t storage_bytes(Format format, std::int64_t count) const = 0;
  virtual MemoryResource& memory() = 0;
  /// Free bytes for allocations, as the system tells it now.
  virtual std::int64_t memory_free_bytes() const = 0;

  /// Values into and out of device memory, in stream order, blocking. Values are rounded once to `format`.
  virtual void write(void* destination, Format format, std::span<const double> values) = 0;
  virtual void read(const void* source, Format format, std::span<double> values) = 0;
  /// The stored bytes themselves.
  virtual void copy(void* destination, const void* source, std::int64_t bytes) = 0;
  virtual void fill_bytes(void* destination, unsigned char value, std::int64_t bytes) = 0;

  virtual Support supports(const Problem& problem) const = 0;
  /// Throws Error(not_supported) with the reason. With several implementations the choice is timed once and kept in
  /// tuning(). `forced` picks one by name.
  virtual std::unique_ptr<Plan> prepare(const Problem& problem, std::string_view forced = {}) = 0;
  /// Names of the implementations that support the problem.
  virtual std::vector<std::string> implementations(const Problem& problem) const = 0;
  virtual TuningRecord& tuning() = 0;

  /// Enqueues. Marks are numbered by the caller, 0 … count-1 after reserve_marks(count).
  virtual void run(const Plan& plan, std::span<void* const> operands, void* workspace) = 0;
  virtual void reserve_marks(std::size_t count) = 0;
  virtual void mark(std::size_t number) = 0;
  virtual void synchronize() = 0;
  /// Seconds between two marks; valid after synchronize().
  virtual double seconds_between(std::size_t from, std::size_t to) const = 0;

  /// Empties the caches of what was used before, on every worker, reading last so that no dirty line is left.
  virtual void chill() = 0;
};

/// A backend with its device, or the reason why there is none.
struct BackendResult {
  std::unique_ptr<Backend> backend;
  Support support;
};

/// `device` is "cpu", "reference" or "cuda[:N]"; `threads` 0 takes the least of online, affinity and quota.
/// Throws UsageError for an unknown name.
BackendResult open_backend(std::string_view device, int threads = 0);

std::unique_ptr<Backend> make_cpu_backend(int threads);
std::unique_ptr<Backend> make_reference_backend();

}  // namespace mixroof
