// Parts that a run makes while it goes on. What a checkpoint holds of those that the program has not made yet waits here for them, and
// what each was when it was made is kept for a rollback to before that.
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
  /// What a checkpoint holds of a part alone.
  struct waiting_part {
    snapshot content;
    std::string source;  ///< what errors call the checkpoint
  };

  /// Takes out of `content` what it holds of late parts that are not among `present`, and puts in what those were that it does not know.
  void match(snapshot& content, std::vector<trained_optimizer> const& present, std::string const& source);

  bool is_any_waiting() const { return !waiting_.empty(); }
  /// Throws checkpoint_error (E04) that names them.
  void require_none_waiting() const;
  /// Null where nothing waits for it.
  waiting_part const* find(std::string const& name) const;

  /// A part was made in the middle of the run; what waited for it is in it now. `beginning` is a copy of what it was made as, or
  /// empty where nothing rolls back.
  void made(std::string const& name, snapshot beginning);

  /// For a checkpoint: which parts are late, and what still waits.
  void write(snapshot& content) const;

 private:
  std::set<std::string> names_;  ///< of this run so far
  std::map<std::string, waiting_part> waiting_;
  std::map<std::string, snapshot> initial_snapshots_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/deferred_parts.ipp>
#endif
