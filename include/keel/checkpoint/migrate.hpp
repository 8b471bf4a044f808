// A checkpoint of an older program, changed to what this one expects before it is compared with it:
//     run.migrate({"the head was called fc", [](keel::migration& old) { old.rename("fc", "head"); }});
// Every migration sees every checkpoint that is loaded; one that finds nothing to migrate changes nothing.
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

/// A loaded checkpoint in the hands of a migration. Names are those of parameters and buffers: `head.weight`, or a module's,
/// `head`, which stands for all within it.
class migration {
 public:
  /// Changes this snapshot, which outlives it.
  explicit migration(snapshot& content) : content_(content) {}

  /// The checkpoint itself (keel/checkpoint/snapshot.hpp), for what the calls below cannot say.
  snapshot& content() { return content_; }

  /// Gives the tensors of `from`, with their moments and their place in the optimizer, the name `to`.
  void rename(std::string_view from, std::string_view to);

  /// Forgets the tensors of `name`, their moments and their place in the optimizer.
  void drop(std::string_view name);

  /// Adds a tensor that the checkpoint does not have; one that it has stays. A parameter also needs its place in a group.
  void add(std::string const& name, at::Tensor value);

  /// The learning rate of every parameter group, or of one, from here on: what the program builds its optimizer with. What
  /// schedules and rollbacks made of the old one is forgotten. Nothing changes in a checkpoint that has this rate already.
  void set_lr(double rate);
  /// Throws checkpoint_error (E04) for a group that the checkpoint does not have.
  void set_lr(std::size_t group, double rate);

  /// The recipe's slot, such as `clip`, may differ from this program's.
  void accept_slot(std::string const& slot);

 private:
  /// `head.weight` and its moment `head.weight.exp_avg` belong to `head`, `header.weight` does not.
  static bool belongs(std::string_view name, std::string_view to);

  /// Calls `new_name(name)` for all that has a parameter's or buffer's name; an empty one means that it goes.
  template <class NewName>
  void change(NewName const& new_name);
  nlohmann::json& rates();
  template <class NewName>
  static void change_names(nlohmann::json& list, NewName const& new_name);
  template <class Map, class NewName>
  static void change_keys(Map& map, NewName const& new_name);

  snapshot& content_;
};

/// One change between two versions of a program. `name` is what the record of the run says of it.
struct migrate {
  std::string name;                        ///< what the record of the run says of it
  std::function<void(migration&)> change;  ///< what is changed
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/checkpoint/migrate.ipp>
#endif
