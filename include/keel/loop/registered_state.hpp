// State of the program's own that belongs to a run: a curriculum, a sampler, a counter. What is registered is in every
// checkpoint by construction, and comes back with it.
#pragma once

#include <functional>
#include <keel/checkpoint/archive.hpp>
#include <keel/error.hpp>
#include <keel/policy/state.hpp>
#include <string>
#include <utility>
#include <vector>

namespace keel {

class registered_states {
 public:
  /// `state` lists its fields with `visit(archive)` and outlives this. Throws error (E12) for a name that is taken or empty.
  template <saveable State>
  void add(std::string name, State& state) {
    for (auto const& one : states_) {
      if (one.name == name)
        throw error("E12", "the state " + name + " is registered already. Give the second one another name.");
    }
    if (name.empty() || name.find('.') != std::string::npos)
      throw error("E12", "a registered state needs a name, without a dot. Call it as the checkpoint shall: \"curriculum\".");
    states_.push_back({std::move(name), [&state](state_writer& archive) { state.visit(archive); },
                       [&state](state_reader& archive) { state.visit(archive); }});
  }

  /// Throws checkpoint_error (E04) unless `saved` has exactly the states that are registered.
  void require_same(nlohmann::json const& saved, std::string const& source) const {
    for (auto const& one : states_) {
      if (!saved.contains(one.name))
        throw checkpoint_error("E04", source + " holds no state " + one.name +
                                          ", which this program registers. Leave it out, use another run directory, or "
                                          "options.accept_changed_recipe, with which it begins anew.");
    }
    for (auto const& [name, value] : saved.items()) {
      if (std::none_of(states_.begin(), states_.end(), [&name = name](auto const& one) { return one.name == name; }))
        throw checkpoint_error("E04", source + " holds the state " + name +
                                          ", which this program does not register. Call trainer::keep_state(\"" + name +
                                          "\", ..) before the run, or use options.accept_changed_recipe, which drops it.");
    }
  }

  template <class Archive>
  void visit(Archive& archive) {
    for (auto& one : states_) archive(one.name.c_str(), one);
  }

 private:
  struct entry {
    std::string name;
    std::function<void(state_writer&)> write;
    std::function<void(state_reader&)> read;

    void visit(state_writer& archive) const { write(archive); }
    void visit(state_reader& archive) const { read(archive); }
  };
  std::vector<entry> states_;
};

}  // namespace keel
