#include "harness/backend/tuning.h"

namespace mixroof {

std::optional<TuningChoice> TuningRecord::find(const std::string& problem_id) const {
  const std::scoped_lock lock(mutex_);
  const auto found = choices_.find(problem_id);
  if (found == choices_.end()) return std::nullopt;
  return found->second;
}

void TuningRecord::set(const std::string& problem_id, TuningChoice choice) {
  const std::scoped_lock lock(mutex_);
  choices_[problem_id] = std::move(choice);
}

std::map<std::string, TuningChoice> TuningRecord::choices() const {
  const std::scoped_lock lock(mutex_);
  return choices_;
}

}  // namespace mixroof
