// Definitions for deferred_parts.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <algorithm>
#include <iterator>
#include <keel/core/error.hpp>
#include <keel/trainer/deferred_parts.hpp>
#include <nlohmann/json.hpp>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Names of the tensors and JSON paths in a snapshot that belong to one part.
class places_of_part {
 public:
  explicit places_of_part(std::string const& name)
      : model_(name + "."), optimizer_(name + ":"), tensors_("step." + name + ".") {
    for (char const* const object : {"/optimizers/", "/recipes/", "/run/step/"}) objects_.emplace_back(object + name);
  }

  /// Moves the part's state from one snapshot to the other.
  void move(snapshot& from, snapshot& to) const {
    move_tensors(from.model, to.model, model_);
    move_tensors(from.optimizer, to.optimizer, optimizer_);
    move_tensors(from.tensors, to.tensors, tensors_);
    for (nlohmann::json::json_pointer const& place : objects_) {
      if (!from.state.contains(place)) continue;
      to.state[place] = std::move(from.state[place]);
      from.state[place.parent_pointer()].erase(place.back());
    }
    auto& frozen = from.state["frozen"];
    nlohmann::json left = nlohmann::json::array();
    for (nlohmann::json& one : frozen) {
      bool const is_its = one.is_string() && one.get_ref<std::string const&>().starts_with(model_);
      (is_its ? to.state["frozen"] : left).push_back(std::move(one));
    }
    frozen = std::move(left);
    auto const its = std::stable_partition(from.finite.begin(), from.finite.end(),
                                           [&](std::string const& one) { return !one.starts_with(model_); });
    to.finite.insert(to.finite.end(), std::make_move_iterator(its), std::make_move_iterator(from.finite.end()));
    from.finite.erase(its, from.finite.end());
  }

 private:
  static void move_tensors(tensor_map& from, tensor_map& to, std::string const& prefix) {
    for (auto at = from.lower_bound(prefix); at != from.end() && at->first.starts_with(prefix);) {
      auto const next = std::next(at);
      to.insert(from.extract(at));
      at = next;
    }
  }

  std::string model_, optimizer_, tensors_;
  std::vector<nlohmann::json::json_pointer> objects_;
};

KEEL_BODY void deferred_parts::match(snapshot& content, std::vector<trained_optimizer> const& present,
                                     std::string const& source) {
  if (!content.state.is_object()) return;
  auto const is_here = [&](std::string const& name) {
    return std::any_of(present.begin(), present.end(), [&](trained_optimizer const& one) { return one.name == name; });
  };
  waiting_.clear();
  for (nlohmann::json const& one : content.state.value("late_parts", nlohmann::json::array())) {
    if (!one.is_string()) continue;
    auto const& name = one.get_ref<std::string const&>();
    names_.insert(name);
    if (is_here(name)) continue;
    waiting_part part{{}, source};
    part.content.state = {{"keel", content.state.value("keel", nlohmann::json())},
                          {"recipe", content.state.value("recipe", nlohmann::json())},
                          {"updates", content.state.value("updates", nlohmann::json())},
                          {"frozen", nlohmann::json::array()}};
    nlohmann::json::json_pointer const updates("/run/step/updates");
    if (content.state.contains(updates)) part.content.state[updates] = content.state[updates];
    places_of_part(name).move(content, part.content);
    waiting_.emplace(name, std::move(part));
  }
  nlohmann::json const known = content.state.value("optimizers", nlohmann::json::object());
  for (auto const& [name, initial_state] : initial_snapshots_) {
    if (!is_here(name) || known.contains(name)) continue;
    snapshot copy = initial_state;
    places_of_part(name).move(copy, content);
  }
}

KEEL_BODY void deferred_parts::require_none_waiting() const {
  if (waiting_.empty()) return;
  std::string names;
  for (auto const& [name, part] : waiting_) names += (names.empty() ? "" : ", ") + name;
  bool const is_one = waiting_.size() == 1;
  std::string const it = is_one ? "it" : "them";
  throw checkpoint_error(
      "E04", waiting_.begin()->second.source + " contains " + (is_one ? "part " : "parts ") + names + ", which " +
                 (is_one ? "was" : "were") +
                 " added during the original run, but this program completed an iteration without creating " + it +
                 ". Create " + it +
                 " before the loop or at the start of the first iteration after resume(), or use another run directory.");
}

KEEL_BODY deferred_parts::waiting_part const* deferred_parts::find(std::string const& name) const {
  auto const found = waiting_.find(name);
  return found == waiting_.end() ? nullptr : &found->second;
}

KEEL_BODY void deferred_parts::part_created(std::string const& name, snapshot initial_state) {
  names_.insert(name);
  waiting_.erase(name);
  if (initial_state.state.is_object()) initial_snapshots_.insert_or_assign(name, std::move(initial_state));
}

KEEL_BODY void deferred_parts::write(snapshot& content) const {
  if (names_.empty()) return;
  content.state["late_parts"] = names_;
  for (auto const& [name, part] : waiting_) {
    snapshot copy = part.content;
    places_of_part(name).move(copy, content);
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
