// Loads a recipe from a file, for tools: the same slots, policies and rules as in C++, in JSON.
//     {
//       "precision": "fp16",
//       "loss_scale": {"dynamic": {"initial": 1024, "floor": 1}},
//       "clip": {"global_norm": 1.0},
//       "nonfinite": {"rollback": {"limit": 10, "attempts": 3}},
//       "checkpoint": {"every_steps": {"interval": 500, "keep": 2}},
//       "oom": {"ladder": ["halve_micro_batch", {"enable_recompute": "reentrant"}, "give_up"]},
//       "model": ["batch_norm", "dropout"],
//       "accept": ["O10", "A17"],
//       "run": {"world_size": 8, "updates": 10000, "learning_rate": 3e-4}
//     }
// A slot is the name of a policy, {name: argument}, {name: {fields}}, or {name: argument, field: value}. Slots with a single policy and
// slots of facts directly contain their fields, or a list of the facts that are true. Durations are numbers of updates or seconds, or texts
// such as "500_steps" and "10_min". Everything that is omitted has its default. "run" sets config::run, without which rules that need it
// are not checked. It requires at least the three facts above.
#pragma once

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <keel/config/describe.hpp>
#include <keel/core/error.hpp>
#include <keel/core/file_system.hpp>
#include <keel/json/fields.hpp>
#include <keel/json/text.hpp>
#include <keel/recipe/check.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

namespace keel {

namespace detail {

template <class Description>
inline constexpr auto policies_of = Description::policies();

template <class Description>
using settings_in = std::remove_cvref_t<decltype(policies_of<Description>.all[0].start)>;

/// True for a custom policy, which only C++ can name.
inline bool is_custom(char const* name) { return std::string(name) == "custom"; }

template <class Description>
std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (auto const& policy : policies_of<Description>.all) {
    if (!is_custom(policy.name)) names.emplace_back(policy.name);
  }
  return names;
}

template <class Description>
policy_entry<settings_in<Description>> const* find_policy_named(std::string const& name) {
  for (auto const& policy : policies_of<Description>.all) {
    if (name == policy.name) return &policy;
  }
  return nullptr;
}

template <class Description>
auto const& policy_named(std::string const& name, std::string const& path) {
  auto const* const policy = find_policy_named<Description>(name);
  if (policy == nullptr) throw_unknown(path, name, "policy", policy_names<Description>());
  if (is_custom(policy->name)) throw_wrong(path, "is \"custom\", a custom policy, which a file cannot bring");
  return *policy;
}

/// Determines whether a field is a list of policies.
struct list_finder {
  std::string wanted;
  bool found = false;
  void list(char const* name, auto&&...) { found |= wanted == name; }
  void truth(auto&&...) {}
  void number(auto&&...) {}
  void number_between(auto&&...) {}
  void number_or_infinity(auto&&...) {}
  void optional_number(auto&&...) {}
  void updates(auto&&...) {}
  void optional_updates(auto&&...) {}
  void epochs(auto&&...) {}
  void tokens(auto&&...) {}
  void seconds(auto&&...) {}
  void list_of_updates(auto&&...) {}
  void name(auto&&...) {}
  template <class Enum, int Size>
  void choice(char const*, Enum&, char const* const (&)[Size]) {}
};

/// Reads settings of a policy from its argument, or from its fields. `beside`: fields next to the argument, at `path_beside`.
template <class Description>
settings_in<Description> read_settings(policy_entry<settings_in<Description>> const& policy, nlohmann::json const& content,
                                       std::string const& path, nlohmann::json const& beside = nlohmann::json::object(),
                                       std::string const& path_beside = "") {
  auto settings = policy.start;
  list_finder finder{policy.argument == nullptr ? "" : policy.argument};
  Description::fields(settings, finder);
  settings = policy.start;
  bool const is_argument = finder.found ? content.is_array() : !content.is_object() && !content.is_array();
  if (is_argument && policy.argument == nullptr) {
    throw_wrong(path, *policy.fields == '\0' ? "takes no argument" : "must be an object of fields, or a list of names");
  }
  nlohmann::json fields = is_argument ? nlohmann::json{{policy.argument, content}} : content;
  if (policy.needs_argument && !(fields.is_object() && fields.contains(policy.argument))) {
    throw_wrong(path, "needs " + std::string(policy.argument));
  }
  std::string const place = finder.found ? path : path + "/" + (is_argument ? policy.argument : "");
  if (!beside.empty()) {
    // All fields must be in one place, and each may appear only once.
    if (!is_argument) throw_wrong(path_beside, "must be the name of a policy, or an object with one policy as its key");
    if (beside.contains(policy.argument)) {
      throw_wrong(path_beside, "has " + std::string(policy.argument) + " twice: it is what stands at \"" + policy.name + "\"");
    }
    fields.update(beside);
    read_fields<Description>(settings, fields, path_beside, policy.fields, policy.argument, place);
  } else if (is_argument) {
    read_fields<Description>(settings, fields, path, policy.fields, policy.argument, place);
  } else {
    read_fields<Description>(settings, fields, path, policy.fields);
  }
  return settings;
}

/// Reads `"name"`, `{"name": argument}` or `{"name": {fields}}`; fields may also be next to an argument.
template <class Description>
settings_in<Description> read_policy(nlohmann::json const& value, std::string const& path) {
  if (value.is_string()) {
    std::string const name = value.template get<std::string>();
    auto const& policy = policy_named<Description>(name, path);
    if (policy.needs_argument) {
      throw_wrong(path, "needs the " + std::string(policy.argument) + " of " + policy.name + ": {\"" + policy.name + "\": ..}");
    }
    return policy.start;
  }
  auto const wrong = [&] { throw_wrong(path, "must be the name of a policy, or an object with one policy as its key"); };
  if (!value.is_object() || value.empty()) wrong();
  std::string name = value.begin().key();
  if (value.size() > 1) {
    int policies = 0;
    for (auto const& [key, content] : value.items()) {
      if (find_policy_named<Description>(key) == nullptr) continue;
      name = key;
      ++policies;
    }
    if (policies != 1) wrong();
  }
  auto const& policy = policy_named<Description>(name, path);
  nlohmann::json beside = value;
  beside.erase(name);
  return read_settings<Description>(policy, value[name], path + "/" + name, beside, path);
}

/// Reads a slot. A slot with a single policy directly contains that policy's fields.
template <class Slot>
typename Slot::settings read_slot(nlohmann::json const& value, std::string const& path) {
  if constexpr (Slot::is_single) {
    constexpr auto const& policies = policies_of<Slot>.all;
    if (value.is_string() && *policies[0].fields == '\0' && value == policies[0].name) return policies[0].start;
    return read_settings<Slot>(policies[std::size(policies) - 1], value, path);
  } else {
    return read_policy<Slot>(value, path);
  }
}

template <class Settings, int Size, class Description>
void json_fields::list(char const* name, Settings (&to)[Size], int& count, Description /*description*/) {
  auto const* const values = find(name);
  if (values == nullptr) return;
  if (!values->is_array()) throw_wrong(place(name), "must be a list");
  if (values->size() > static_cast<std::size_t>(Size))
    throw_wrong(place(name), "has more than " + std::to_string(Size) + " " + name);
  count = 0;
  for (auto const& value : *values) {
    to[count] = read_policy<Description>(value, place(name) + "/" + std::to_string(count));
    ++count;
  }
}

inline void read_accepted(config& to, nlohmann::json const& value, std::string const& path) {
  if (!value.is_array()) throw_wrong(path, "must be a list of rule ids, such as [\"B06\"]");
  for (auto const& id : value) {
    if (!id.is_string()) throw_wrong(path, "must be a list of rule ids, such as [\"B06\"]");
    auto const word = id.get<std::string>();
    // A rule_id ends at the first zero byte; the rest would be ignored silently.
    if (word.find('\0') != std::string::npos)
      throw_wrong(path, "must be a list of rule ids, such as [\"B06\"], and \"" + printable(word, 20) + "\" holds a zero byte");
    if (to.accepted_count < max_accepted) to.accepted[to.accepted_count] = rule_id(word.c_str());
    ++to.accepted_count;
  }
}

struct run_description {
  static void fields(auto& s, auto& field) {
    field.number("world_size", s.world_size);
    field.updates("updates", s.updates);
    field.number("learning_rate", s.learning_rate);
    field.truth("half_kernels", s.half_kernels);
    field.truth("bfloat16_kernels", s.bfloat16_kernels);
  }
};

/// Reads "run". Requires all three facts, because a missing one would be treated as known.
inline void read_run(config& to, nlohmann::json const& value, std::string const& path) {
  for (char const* const fact : {"world_size", "updates", "learning_rate"}) {
    if (!value.is_object() || !value.contains(fact)) {
      throw_wrong(path, std::string("needs world_size, updates and learning_rate, and lacks ") + fact);
    }
  }
  to.run.known = true;
  read_fields<run_description>(to.run, value, path);
  if (to.run.world_size < 1) throw_wrong(path + "/world_size", "must be at least 1");
}

template <class... Slots>
std::vector<std::string> slot_names(slot_list<Slots...>) {
  return {Slots::name..., "accept", "run"};
}

template <class... Slots>
void read_slots(config& to, nlohmann::json const& document, slot_list<Slots...> all) {
  for (auto const& [key, value] : document.items()) {
    std::string const path = "/" + key;
    bool const known = ((key == Slots::name && (to.*place<Slots> = read_slot<Slots>(value, path), true)) || ...);
    if (known) continue;
    if (key == "accept") {
      read_accepted(to, value, path);
    } else if (key == "run") {
      read_run(to, value, path);
    } else {
      throw_unknown("", key, "slot", slot_names(all));
    }
  }
}

}  // namespace detail

/// Parses a configuration from JSON text, without checking its rules. Throws config_error (E13) with the location: invalid JSON, more than
/// 64 levels, an unknown key (with the nearest known one), a duplicate key, a value of the wrong kind.
inline config parse_config(std::string const& text) {
  nlohmann::json const document = detail::parse_strictly(text);
  if (!document.is_object()) detail::throw_wrong("", "must be an object of slots");
  config value;
  detail::read_slots(value, document, slots{});
  return value;
}

namespace detail {
/// Reads a file. Throws file_error (E02).
inline std::string text_of_file(std::filesystem::path const& file) { return file_system().read(file); }
}  // namespace detail

/// Reads a configuration from a JSON file, without checking its rules. Throws config_error (E13), file_error (E02).
inline config read_config(std::filesystem::path const& file) {
  try {
    return parse_config(detail::text_of_file(file));
  } catch (config_error const& thrown) {
    throw thrown.in_file(file.string());
  }
}

namespace detail {
/// Throws recipe_error with the ids and messages of all broken rules, one per line after `source`.
inline void require_ok(verdict const& result, std::string const& source) {
  if (result.ok()) return;
  std::string sentences = source;
  std::vector<std::string> ids;
  for (violation const& one : result) {
    sentences += "\n" + std::string(describe(one).c_str());
    ids.emplace_back(one.id);
  }
  throw recipe_error(ids.front(), sentences, ids);
}
}  // namespace detail

/// Throws recipe_error with the ids and messages of all rules that a configuration breaks, one per line.
inline void require_valid(config const& value, std::string const& source) { detail::require_ok(check(value), source); }

/// Loads a valid configuration from a JSON file. Throws config_error (E13), file_error (E02), and recipe_error with all broken rules.
inline config load_config(std::filesystem::path const& file) {
  config const value = read_config(file);
  require_valid(value, file.string() + " breaks rules that would waste the run:");
  return value;
}

}  // namespace keel
