// The rollbacks and restarts of a run.
#pragma once

#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <vector>

namespace keel::inline KEEL_MODE {

/// The rollbacks of a run so far, and its restarts with options.resume_at. Each one is followed by a checkpoint that records it, so a run
/// that is killed and resumed cannot exceed the limit.
struct rollback_history {
  std::vector<std::int64_t> from;
  std::vector<std::int64_t> to;
  std::vector<std::int64_t> restarted_at;
  std::vector<double> restarted_with;  ///< learning rate of the first group
  std::int64_t before_restart = 0;     ///< rollbacks before the last restart, which do not count

  std::int64_t count() const { return static_cast<std::int64_t>(to.size()); }
  /// Rollbacks that count towards the recipe's limit.
  std::int64_t attempts() const { return count() - before_restart; }
  std::int64_t generation() const { return count() + static_cast<std::int64_t>(restarted_at.size()); }
  /// True if the last restart had this update and learning rate, so the program was merely started again.
  bool was_restarted(std::int64_t update, double rate) const {
    return !restarted_at.empty() && restarted_at.back() == update && restarted_with.back() == rate;
  }

  template <class Archive>
  void visit(Archive& archive) {
    archive("from", from);
    archive("to", to);
    archive.optional_field("restarted_at", restarted_at);
    archive.optional_field("restarted_with", restarted_with);
    archive.optional_field("before_restart", before_restart);
  }
};

}  // namespace keel::inline KEEL_MODE
