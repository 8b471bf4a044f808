// Definitions for migrate.hpp.
#pragma once

#include <keel/checkpoint/migrate.hpp>
#include <keel/checkpoint/snapshot.hpp>
#include <keel/core/error.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY void migration::rename(std::string_view from, std::string_view to) {
  auto const moved = [&](std::string const& name) {
    return belongs(name, from) ? std::string(to) + name.substr(from.size()) : name;
  };
  change(moved);
}

KEEL_BODY void migration::drop(std::string_view name) {
  change([&](std::string const& one) { return belongs(one, name) ? std::string() : one; });
}

KEEL_BODY void migration::set_lr(double rate) {
  std::size_t const groups = rates().size();
  for (std::size_t group = 0; group < groups; ++group) set_lr(group, rate);
}

KEEL_BODY void migration::set_lr(std::size_t group, double rate) {
  auto& highest = rates();
  if (group >= highest.size())
    throw checkpoint_error("E04", "a migration sets the learning rate of group " + std::to_string(group) +
                                      ", but there are only " + std::to_string(highest.size()) +
                                      " groups. Groups are numbered from 0.");
  if (highest[group] == rate) return;
  highest[group] = rate;
  using pointer = nlohmann::json::json_pointer;
  content_.state[pointer("/run/step/schedule/lowered")] = 1.0;
  content_.state[pointer("/optimizer/groups/" + std::to_string(group) + "/options/lr")] = rate;
}

KEEL_BODY bool migration::belongs(std::string_view name, std::string_view to) {
  return name == to || (name.starts_with(to) && name.size() > to.size() && name[to.size()] == '.');
}

template <class NewName>
void migration::change(NewName const& new_name) {
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

KEEL_BODY nlohmann::json& migration::rates() {
  nlohmann::json& found = content_.state[nlohmann::json::json_pointer("/run/step/schedule/highest_lr")];
  if (!found.is_array()) found = nlohmann::json::array();
  return found;
}

template <class NewName>
void migration::change_names(nlohmann::json& list, NewName const& new_name) {
  nlohmann::json names = nlohmann::json::array();
  for (nlohmann::json const& name : list) {
    std::string const now = name.is_string() ? new_name(name.get<std::string>()) : std::string();
    if (!now.empty()) names.push_back(now);
  }
  list = std::move(names);
}

template <class Map, class NewName>
void migration::change_keys(Map& map, NewName const& new_name) {
  Map changed;
  for (auto const& [name, value] : map) {
    std::string const now = new_name(name);
    if (!now.empty() && !changed.emplace(now, value).second)
      throw checkpoint_error("E04", "a migration gives two tensors the name " + now + ". Drop one of them first.");
  }
  map = std::move(changed);
}

KEEL_BODY void migration::add(std::string const& name, at::Tensor value) { content_.model.emplace(name, std::move(value)); }

KEEL_BODY void migration::accept_slot(std::string const& slot) { content_.state["recipe"][slot] = nullptr; }

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
