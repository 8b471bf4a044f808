// The program's state that belongs to a run: a curriculum, a sampler, the hidden state that an LSTM carries on. What is
// registered is in every checkpoint by construction and comes back with it, and an update that is left out, or begins again
// because memory ran out, leaves it as it was. A NaN that gets into it is never saved over a good checkpoint (N13).
#pragma once

#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <keel/checkpoint/archive.hpp>
#include <keel/error.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/policy/state.hpp>
#include <keel/rule/nonfinite.hpp>
#include <keel/step/program_state.hpp>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel {

/// What registered state goes back with. Putting it back needs a copy of it before every update, which a replay buffer of
/// gigabytes is better without.
enum class state_scope : unsigned char {
  updates,     ///< also an update that does not take place leaves it as it was
  checkpoints  ///< only a resume and a rollback bring it back
};

namespace detail {

/// The names of tensors that hold NaN or infinity and of numbers that are NaN; an infinite number is often "none yet".
struct unsound_fields {
  std::set<std::string>& found;
  std::string path;

  template <class Field>
  void operator()(char const* name, Field& field) {
    if constexpr (std::is_same_v<Field, at::Tensor>) {
      bool const looked_at = field.defined() && field.is_floating_point() && field.layout() == at::kStrided;
      if (looked_at && host_value(at::isfinite(field).all()) == 0.0) found.insert(path + name);
    } else if constexpr (std::is_floating_point_v<Field>) {
      if (std::isnan(field)) found.insert(path + name);
    } else if constexpr (requires { field.visit(*this); }) {
      unsound_fields inner{found, path + name + "."};
      field.visit(inner);
    }
  }
};

}  // namespace detail

class registered_states final : public program_state {
 public:
  /// `state` lists its fields with `visit(archive)` and outlives this. Throws error (E12) for a name that is taken or empty.
  template <saveable State>
  void add(std::string name, State& state, state_scope scope = state_scope::updates) {
    for (auto const& one : states_) {
      if (one.name == name)
        throw error("E12", "the state " + name + " is registered already. Give the second one another name.");
    }
    if (name.empty() || name.find('.') != std::string::npos)
      throw error("E12", "a registered state needs a name, without a dot. Call it as the checkpoint shall: \"curriculum\".");
    states_.push_back({std::move(name), [&state](state_writer& archive) { state.visit(archive); },
                       [&state](state_reader& archive) { state.visit(archive); }, scope,
                       [&state] { return field_copies::of(state); },
                       [&state](field_copies const& copies) { copies.put_back(state); },
                       [&state] { return field_marks::of(state); },
                       [&state](field_marks const& marks) { return marks.changed(state); },
                       [&state] {
                         std::set<std::string> found;
                         detail::unsound_fields archive{found, ""};
                         state.visit(archive);
                         return found;
                       },
                       {}});
    states_.back().unsound_from_the_start = states_.back().unsound();
  }

  /// Nothing that an update would have to put back.
  bool empty() const override {
    return std::none_of(states_.begin(), states_.end(), [](entry const& one) { return one.scope == state_scope::updates; });
  }
  std::vector<field_copies> take() override {
    std::vector<field_copies> copies;
    for_each_undone([&](entry const& one, std::size_t) { copies.push_back(one.take()); });
    return copies;
  }
  void put_back(std::vector<field_copies> const& copies) override {
    for_each_undone([&](entry const& one, std::size_t i) {
      if (i < copies.size()) one.put_back(copies[i]);
    });
  }
  std::vector<field_marks> take_marks() override {
    std::vector<field_marks> marks;
    for_each_undone([&](entry const& one, std::size_t) { marks.push_back(one.take_marks()); });
    return marks;
  }
  void leave_changes(std::vector<field_marks> const& marks, std::vector<field_copies>& copies) override {
    for_each_undone([&](entry const& one, std::size_t i) {
      if (i < marks.size() && i < copies.size()) copies[i].leave(one.changed(marks[i]));
    });
  }

  /// Throws nonfinite_error (N13) for a NaN, or an infinity in a tensor, that was not there when the state was registered.
  void require_finite() const {
    for (auto const& one : states_) {
      for (std::string const& field : one.unsound()) {
        if (one.unsound_from_the_start.count(field) == 0)
          throw broken_rule<nonfinite_error, rule::N13>(one.name + "." + field + " is not finite");
      }
    }
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
    state_scope scope;
    std::function<field_copies()> take;
    std::function<void(field_copies const&)> put_back;
    std::function<field_marks()> take_marks;
    std::function<std::vector<bool>(field_marks const&)> changed;
    std::function<std::set<std::string>()> unsound;
    std::set<std::string> unsound_from_the_start;  ///< a mask of minus infinity, a number that is not known yet

    void visit(state_writer& archive) const { write(archive); }
    void visit(state_reader& archive) const { read(archive); }
  };
  template <class Use>
  void for_each_undone(Use const& use) const {
    std::size_t index = 0;
    for (auto const& one : states_) {
      if (one.scope == state_scope::updates) use(one, index++);
    }
  }

  std::vector<entry> states_;
};

}  // namespace keel
