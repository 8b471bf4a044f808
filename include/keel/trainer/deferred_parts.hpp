// Parts that a program creates in the middle of a run. Holds the checkpointed state of parts that do not exist yet, until they are created.
// Also keeps each part's initial state, for a rollback to an update before the part was created.
#pragma once

#include <keel/checkpoint/snapshot.hpp>
#include <keel/checkpoint/trained_optimizer.hpp>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

class deferred_parts {
 public:
  /// The state of one part, taken from a checkpoint.
  struct waiting_part {
    snapshot content;
    std::string source;  ///< name of the checkpoint in error messages
  };

  /// Moves the state of parts that the program has not created yet out of `content`, and holds it until they are created. For each part in
  /// `present` that `content` lacks, inserts the part's initial state.
  void match(snapshot& content, std::vector<trained_optimizer> const& present, std::string const& source);

  bool is_any_waiting() const { return !waiting_.empty(); }
  /// Throws checkpoint_error (E04), which names the parts, if the program has not created a part whose state is held.
  void require_none_waiting() const;
  /// Returns the held state of the part `name`, or null. Valid until the next match() or part_created().
  waiting_part const* find(std::string const& name) const;

  /// Call after a part was created during the run, and after its held state, if any, was loaded. Discards that state and keeps
  /// `initial_state`, a copy of the part's initial state; empty if no part rolls back.
  void part_created(std::string const& name, snapshot initial_state);

  /// Adds the names of the parts created during the run, and the held states, to a checkpoint.
  void write(snapshot& content) const;

 private:
  std::set<std::string> names_;  ///< parts created during the run so far
  std::map<std::string, waiting_part> waiting_;
  std::map<std::string, snapshot> initial_snapshots_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/deferred_parts.ipp>
#endif
