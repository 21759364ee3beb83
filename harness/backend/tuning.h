// Choices that were made by timing, so that a later run (a resume, another process of the same run) repeats them.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace mixroof {

struct TuningChoice {
  std::string implementation;  // name of the winner
  std::string library;         // with its version
  double time_s = 0;           // of the winner when it was chosen
};

/// Key: Problem::id(); the machine is that of the document that holds the record.
class TuningRecord {
 public:
  std::optional<TuningChoice> find(const std::string& problem_id) const;
  void set(const std::string& problem_id, TuningChoice choice);
  std::map<std::string, TuningChoice> choices() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, TuningChoice> choices_;
};

}  // namespace mixroof
