// A checkpoint of an older program, changed to what this one expects before it is compared with it:
//     run.migrate({"the head was called fc", [](keel::migration& old) { old.rename("fc", "head"); }});
// Every migration sees every checkpoint that is loaded; one that finds nothing to migrate changes nothing.
#pragma once

#include <functional>
#include <keel/checkpoint/snapshot.hpp>
#include <keel/core/error.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace keel {

/// A loaded checkpoint in the hands of a migration. Names are those of parameters and buffers: `head.weight`, or a module's,
/// `head`, which stands for all within it.
class migration {
 public:
  explicit migration(snapshot& content) : content_(content) {}

  /// The checkpoint itself, for what the calls below cannot say.
  snapshot& content() { return content_; }

  /// Gives the tensors of `from`, with their moments and their place in the optimizer, the name `to`.
  void rename(std::string_view from, std::string_view to) {
    auto const moved = [&](std::string const& name) {
      return belongs(name, from) ? std::string(to) + name.substr(from.size()) : name;
    };
    change(moved);
  }

  /// Forgets the tensors of `name`, their moments and their place in the optimizer.
  void drop(std::string_view name) {
    change([&](std::string const& one) { return belongs(one, name) ? std::string() : one; });
  }

  /// Adds a tensor that the checkpoint does not have; one that it has stays. A parameter also needs its place in a group.
  void add(std::string const& name, at::Tensor value) { content_.model.emplace(name, std::move(value)); }

  /// The learning rate of every parameter group, or of one, from here on: what the program builds its optimizer with. What
  /// schedules and rollbacks made of the old one is forgotten. Nothing changes in a checkpoint that has this rate already.
  void set_lr(double rate) {
    std::size_t const groups = rates().size();
    for (std::size_t group = 0; group < groups; ++group) set_lr(group, rate);
  }
  /// Throws checkpoint_error (E04) for a group that the checkpoint does not have.
  void set_lr(std::size_t group, double rate) {
    auto& highest = rates();
    if (group >= highest.size())
      throw checkpoint_error("E04", "a migration sets the learning rate of group " + std::to_string(group) +
                                        ", and there are " + std::to_string(highest.size()) + " groups. Count from 0.");
    if (highest[group] == rate) return;
    highest[group] = rate;
    using pointer = nlohmann::json::json_pointer;
    content_.state[pointer("/run/step/schedule/lowered")] = 1.0;
    content_.state[pointer("/optimizer/groups/" + std::to_string(group) + "/options/lr")] = rate;
  }

  /// The recipe's slot, such as `clip`, may differ from this program's.
  void accept_slot(std::string const& slot) { content_.state["recipe"][slot] = nullptr; }

 private:
  /// `head.weight` and its moment `head.weight.exp_avg` belong to `head`, `header.weight` does not.
  static bool belongs(std::string_view name, std::string_view to) {
    return name == to || (name.starts_with(to) && name.size() > to.size() && name[to.size()] == '.');
  }

  /// Calls `new_name(name)` for all that has a parameter's or buffer's name; an empty one means that it goes.
  template <class NewName>
  void change(NewName const& new_name) {
    static std::string const average = "step.average.";
    change_keys(content_.model, new_name);
    change_keys(content_.optimizer, new_name);
    change_keys(content_.tensors, [&](std::string const& name) {
      if (!name.starts_with(average)) return name;
      std::string const now = new_name(name.substr(average.size()));
      return now.empty() ? now : average + now;
    });
    using pointer = nlohmann::json::json_pointer;
    for (char const* const place : {"/optimizer/state", "/run/step/average"}) {
      if (!content_.state.contains(pointer(place)) || !content_.state[pointer(place)].is_object()) continue;
      nlohmann::json& object = content_.state[pointer(place)];
      auto fields = object.get<std::map<std::string, nlohmann::json>>();
      change_keys(fields, new_name);
      object = fields;
    }
    if (content_.state.contains("frozen") && content_.state["frozen"].is_array())
      change_names(content_.state["frozen"], new_name);
    if (!content_.state.contains(pointer("/optimizer/groups"))) return;
    for (nlohmann::json& group : content_.state[pointer("/optimizer/groups")]) {
      if (group.is_object() && group.contains("parameters")) change_names(group["parameters"], new_name);
    }
  }
  nlohmann::json& rates() {
    nlohmann::json& found = content_.state[nlohmann::json::json_pointer("/run/step/schedule/highest_lr")];
    if (!found.is_array()) found = nlohmann::json::array();
    return found;
  }
  template <class NewName>
  static void change_names(nlohmann::json& list, NewName const& new_name) {
    nlohmann::json names = nlohmann::json::array();
    for (nlohmann::json const& name : list) {
      std::string const now = name.is_string() ? new_name(name.get<std::string>()) : std::string();
      if (!now.empty()) names.push_back(now);
    }
    list = std::move(names);
  }
  template <class Map, class NewName>
  static void change_keys(Map& map, NewName const& new_name) {
    Map changed;
    for (auto const& [name, value] : map) {
      std::string const now = new_name(name);
      if (!now.empty() && !changed.emplace(now, value).second)
        throw checkpoint_error("E04", "a migration gives two tensors the name " + now + ". Drop one of them first.");
    }
    map = std::move(changed);
  }

  snapshot& content_;
};

/// One change between two versions of a program. `name` is what the record of the run says of it.
struct migrate {
  std::string name;
  std::function<void(migration&)> change;
};

}  // namespace keel
