// State of the program that belongs to a run, such as a curriculum, a sampler or the hidden state of an LSTM. Every checkpoint contains
// the registered state, and loading restores it. An update that is skipped, or restarted after running out of memory, restores it too.
// A state that became NaN is never saved (N13).
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <keel/checkpoint/archive.hpp>
#include <keel/core/error.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/policy/state.hpp>
#include <keel/rule/nonfinite.hpp>
#include <keel/step/program_state.hpp>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// When registered state is restored. Restoring it after skipped updates needs a copy before every update, which is too expensive for a
/// large state such as a replay buffer of gigabytes.
enum class state_scope : unsigned char {
  updates,     ///< restored by a resume, a rollback, and a skipped or restarted update
  checkpoints  ///< restored by a resume and a rollback only
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Paths of tensors that hold NaN or infinity, and of numbers that are NaN. Infinite numbers are allowed: they often mean "none yet".
template <class State>
std::set<std::string> find_nonfinite_fields(State& state) {
  std::set<std::string> found;
  for_each_leaf(state, "", [&]<class Leaf>(auto const& path, Leaf& leaf) {
    if constexpr (std::is_same_v<Leaf, at::Tensor>) {
      bool const looked_at =
          leaf.defined() && (leaf.is_floating_point() || leaf.is_complex()) && leaf.layout() == at::kStrided && !leaf.is_meta();
      if (!looked_at) return;
      // LibTorch's isfinite does not support float8.
      at::Tensor const values = leaf.element_size() == 1 ? leaf.to(at::kFloat) : leaf;
      if (host_value(at::isfinite(values).all()) == 0.0) found.insert(path());
    } else if constexpr (std::is_floating_point_v<Leaf>) {
      if (std::isnan(leaf)) found.insert(path());
    }
  });
  return found;
}

/// Throws data_error (E05), which names the first tensor that cannot be saved.
template <class State>
void require_saveable_tensors(State& state, std::string const& name) {
  for_each_leaf(state, name + ".", []<class Leaf>(auto const& path, Leaf& leaf) {
    if constexpr (std::is_same_v<Leaf, at::Tensor>) {
      if (leaf.defined()) require_file_takes(path(), leaf);
    }
  });
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

class registered_states final : public program_state {
 public:
  /// Registers `state`, which lists its fields with `visit(archive)` and must outlive this object. Throws error (E12) for a name that is
  /// taken, empty or contains a dot; data_error (E05) for a tensor that cannot be saved.
  template <saveable State>
  void add(std::string name, State& state, state_scope scope = state_scope::updates) {
    for (auto const& one : states_) {
      if (one.name == name)
        throw error("E12", "the state " + name + " is already registered. Use another name for the second one.");
    }
    if (name.empty() || name.find('.') != std::string::npos)
      throw error("E12",
                  "the name of a registered state must not be empty or contain a dot. Use the name that should appear in the "
                  "checkpoint, such as \"curriculum\".");
    detail::require_saveable_tensors(state, name);
    states_.push_back(
        {.name = std::move(name),
         .scope = scope,
         .write = [&state](state_writer& archive) { state.visit(archive); },
         .read = [&state](state_reader& archive) { state.visit(archive); },
         .take = [&state] { return field_copies::of(state); },
         .restore = [&state](field_copies const& copies) { copies.restore(state); },
         .capture_marks = [&state] { return field_marks::of(state); },
         .exclude_changed = [&state](field_marks const& marks, field_copies& copies) { copies.exclude_changed(marks, state); },
         .find_nonfinite = [&state] { return detail::find_nonfinite_fields(state); },
         .initially_nonfinite = detail::find_nonfinite_fields(state)});
  }

  /// True if no state has state_scope::updates.
  bool empty() const override {
    return std::none_of(states_.begin(), states_.end(), [](entry const& one) { return one.scope == state_scope::updates; });
  }
  std::vector<field_copies> capture() override {
    std::vector<field_copies> copies;
    for_each_restorable([&](entry const& one, std::size_t) { copies.push_back(one.take()); });
    return copies;
  }
  void restore(std::vector<field_copies> const& copies) override {
    for_each_restorable([&](entry const& one, std::size_t i) {
      if (i < copies.size()) one.restore(copies[i]);
    });
  }
  std::vector<field_copies> capture_all() override {
    std::vector<field_copies> copies;
    copies.reserve(states_.size());
    for (auto const& one : states_) copies.push_back(one.take());
    return copies;
  }
  void restore_all(std::vector<field_copies> const& copies) override {
    for (std::size_t i = 0; i < std::min(states_.size(), copies.size()); ++i) states_[i].restore(copies[i]);
  }
  std::vector<field_marks> capture_marks() override {
    std::vector<field_marks> marks;
    for_each_restorable([&](entry const& one, std::size_t) { marks.push_back(one.capture_marks()); });
    return marks;
  }
  void exclude_changes(std::vector<field_marks> const& marks, std::vector<field_copies>& copies) override {
    for_each_restorable([&](entry const& one, std::size_t i) {
      if (i < marks.size() && i < copies.size()) one.exclude_changed(marks[i], copies[i]);
    });
  }

  /// Throws nonfinite_error (N13) for a field that find_nonfinite_fields reports now but did not at registration.
  void require_finite() const {
    for (auto const& one : states_) {
      for (std::string const& field : one.find_nonfinite()) {
        if (one.initially_nonfinite.count(field) == 0)
          throw nonfinite_error("N13", one.name + "." + field +
                                           " is not finite, and a checkpoint with it would replace a good one. Keep NaN out of "
                                           "this registered state: store a value only if keel::as_finite(value) returns one.");
      }
    }
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    all.reserve(states_.size());
    for (auto const& one : states_) all.push_back(one.name);
    return all;
  }

  template <class Archive>
  void visit(Archive& archive) {
    for (auto& one : states_) archive(one.name.c_str(), one);
  }

 private:
  struct entry {
    std::string name;
    state_scope scope;
    std::function<void(state_writer&)> write;
    std::function<void(state_reader&)> read;
    std::function<field_copies()> take;
    std::function<void(field_copies const&)> restore;
    std::function<field_marks()> capture_marks;
    std::function<void(field_marks const&, field_copies&)> exclude_changed;
    std::function<std::set<std::string>()> find_nonfinite;
    std::set<std::string> initially_nonfinite;  ///< fields not finite at registration, such as a mask of minus infinity

    template <class Archive>
    void visit(Archive& archive) const {
      if constexpr (std::is_same_v<Archive, state_writer>) {
        write(archive);
      } else {
        read(archive);
      }
    }
  };
  template <class Use>
  void for_each_restorable(Use const& use) const {
    std::size_t index = 0;
    for (auto const& one : states_) {
      if (one.scope == state_scope::updates) use(one, index++);
    }
  }

  std::vector<entry> states_;
};

}  // namespace keel::inline KEEL_MODE
