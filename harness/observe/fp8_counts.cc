#include "harness/observe/fp8_counts.h"

#include <algorithm>

#include "kernels/registry.h"

namespace mixroof {

std::optional<Fp8Counts> read_fp8_counts(const Execution& execution) {
  const Program& program = execution.program();
  if (program.fp8_counts < 0) return std::nullopt;
  Fp8Counts counts;
  const std::vector<double> pairs = execution.read(program.fp8_counts);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    counts.saturated += pairs[i];
    counts.flushed += pairs[i + 1];
  }
  double per_update = 0;
  for (const SectionKind kind : {SectionKind::first, SectionKind::next, SectionKind::update})
    for (const Op& op : program.section(kind)) {
      const bool is_counted = std::any_of(op.operands.begin(), op.operands.end(),
                                          [&](const OperandRef& ref) { return ref.tensor == program.fp8_counts; });
      if (!is_counted) continue;
      const std::int64_t values = find_kernel(op.problem.kernel).operands(op.problem).front().count();
      per_update += static_cast<double>(values) * static_cast<double>(program.repeats(kind));
    }
  counts.quantized = per_update * static_cast<double>(execution.outcome().attempted);
  return counts;
}

}  // namespace mixroof
