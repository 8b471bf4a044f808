// Adapts checkpoints of an older version of a program before they are compared with the current one:
//     run.migrate({"the head was called fc", [](keel::migration& old) { old.rename("fc", "head"); }});
// Every migration runs on every loaded checkpoint, so it must leave current checkpoints unchanged.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <keel/libtorch/mode.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace keel::inline KEEL_MODE {

struct snapshot;

/// A loaded checkpoint that a migration modifies. Names are those of parameters and buffers, such as `head.weight`. A module's
/// name, such as `head`, selects all tensors in it.
class migration {
 public:
  /// Modifies `content`, which must outlive this object.
  explicit migration(snapshot& content) : content_(content) {}

  /// Returns the checkpoint (keel/checkpoint/snapshot.hpp), for changes that the calls below do not cover.
  snapshot& content() { return content_; }

  /// Renames the tensors of `from`, their optimizer state and their entries in parameter groups to `to`.
  void rename(std::string_view from, std::string_view to);

  /// Removes the tensors of `name`, their optimizer state and their entries in parameter groups.
  void drop(std::string_view name);

  /// Adds a tensor unless the checkpoint already has one of this name. A parameter also needs an entry in a parameter group.
  void add(std::string const& name, at::Tensor value);

  /// Sets the learning rate of every parameter group to the one that the program builds its optimizer with. Discards changes by
  /// schedules and rollbacks. Has no effect if the checkpoint already has this rate.
  void set_lr(double rate);
  /// Sets the rate of one group. Throws checkpoint_error (E04) if the checkpoint does not have the group.
  void set_lr(std::size_t group, double rate);

  /// Accepts a checkpoint whose recipe differs from this program's in the given slot, such as `clip`.
  void accept_slot(std::string const& slot);

 private:
  /// Returns true if a tensor belongs to a module: `head.weight` and its moment `head.weight.exp_avg` belong to `head`,
  /// `header.weight` does not.
  static bool belongs(std::string_view name, std::string_view to);

  /// Replaces every parameter and buffer name by `new_name(name)`. An empty result removes the tensor.
  template <class NewName>
  void change(NewName const& new_name);
  nlohmann::json& rates();
  template <class NewName>
  static void change_names(nlohmann::json& list, NewName const& new_name);
  template <class Map, class NewName>
  static void change_keys(Map& map, NewName const& new_name);

  snapshot& content_;
};

/// A named change between two versions of a program.
struct migrate {
  std::string name;                        ///< recorded in the run's record
  std::function<void(migration&)> change;  ///< applies the change
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/checkpoint/migrate.ipp>
#endif
