// A part of a checkpoint other than model and optimizer.
#pragma once

#include <functional>
#include <keel/libtorch/mode.hpp>

namespace keel::inline KEEL_MODE {

class state_reader;
class state_writer;

/// A named part of a run's state, which lists its fields with `visit`.
struct state_part {
  char const* name;
  std::function<void(state_writer&)> write;
  std::function<void(state_reader&)> read;

  /// `state` must outlive the part.
  template <class State>
  static state_part of(char const* name, State& state) {
    return {name, [&state](state_writer& archive) { state.visit(archive); },
            [&state](state_reader& archive) { state.visit(archive); }};
  }
};

}  // namespace keel::inline KEEL_MODE
