// How often a run rolled back, and where to.
#pragma once

#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <vector>

namespace keel::inline KEEL_MODE {

/// The rollbacks of a run so far, and where options.resume_at sent it. It is part of the checkpoint that follows each, so that
/// a kill does not make them endless.
struct rollback_history {
  std::vector<std::int64_t> from;
  std::vector<std::int64_t> to;
  std::vector<std::int64_t> restarted_at;
  std::vector<double> restarted_with;  ///< learning rate of the first group
  std::int64_t before_restart = 0;     ///< rollbacks that the last restart made up for

  std::int64_t count() const { return static_cast<std::int64_t>(to.size()); }
  /// Rollbacks that count towards the recipe's limit.
  std::int64_t attempts() const { return count() - before_restart; }
  std::int64_t generation() const { return count() + static_cast<std::int64_t>(restarted_at.size()); }
  /// The last restart was this one, and the program is only started again.
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
