// A recipe from a file, for tools: the same slots, policies and rules as in C++, in JSON.
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
// A slot is the name of a policy, or {name: argument}, or {name: {fields}}; slots of one policy and slots of facts take their
// fields at once, or a list of the facts that hold. Durations are numbers of updates or seconds, or "500_steps", "10_min".
// What is left out has its default. "run" fills config::run, without which rules that need it stay silent; it needs at least
// the three facts above.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <keel/config/json_fields.hpp>
#include <keel/config/json_text.hpp>
#include <keel/config/slot_format.hpp>
#include <keel/error.hpp>
#include <keel/recipe/describe.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

namespace keel {

namespace detail {

template <class Format>
using settings_in = std::remove_cvref_t<decltype(Format::policies[0].start)>;

template <class Format>
std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (auto const& policy : Format::policies) names.emplace_back(policy.name);
  return names;
}

template <class Format>
auto const& policy_named(std::string const& name, std::string const& path) {
  for (auto const& policy : Format::policies) {
    if (name == policy.name) return policy;
  }
  throw_unknown(path, name, "policy", policy_names<Format>());
}

/// `"name"`, `{"name": argument}` or `{"name": {fields}}`.
template <class Format>
settings_in<Format> read_policy(nlohmann::json const& value, std::string const& path) {
  if (value.is_string()) {
    std::string const name = value.template get<std::string>();
    auto const& policy = policy_named<Format>(name, path);
    if (policy.needs_argument) {
      throw_wrong(path, "needs the " + std::string(policy.argument) + " of " + policy.name + ": {\"" + policy.name + "\": ..}");
    }
    return policy.start;
  }
  if (!value.is_object() || value.size() != 1) {
    throw_wrong(path, "must be the name of a policy, or an object with one policy as its key");
  }
  std::string const name = value.begin().key();
  auto const& policy = policy_named<Format>(name, path);
  auto settings = policy.start;
  nlohmann::json const& content = value.begin().value();
  bool const at_once = !content.is_object() && !content.is_array();
  if (at_once && policy.argument == nullptr) throw_wrong(path + "/" + name, "takes no argument");
  nlohmann::json const fields = at_once ? nlohmann::json{{policy.argument, content}} : content;
  if (policy.needs_argument && !(fields.is_object() && fields.contains(policy.argument))) {
    throw_wrong(path + "/" + name, "needs " + std::string(policy.argument));
  }
  read_fields<Format>(settings, fields, path + "/" + name, policy.fields);
  return settings;
}

/// A slot with a single policy, whose name is the slot's and is not written.
template <class Format>
settings_in<Format> read_slot(nlohmann::json const& value, std::string const& path) {
  if constexpr (std::size(Format::policies) == 1) {
    auto const& policy = Format::policies[0];
    auto settings = policy.start;
    bool const at_once = !value.is_object() && !value.is_array();
    if (at_once && policy.argument == nullptr) throw_wrong(path, "must be an object of fields, or a list of names");
    read_fields<Format>(settings, at_once ? nlohmann::json{{policy.argument, value}} : value, path, policy.fields);
    return settings;
  } else {
    return read_policy<Format>(value, path);
  }
}

inline oom::settings read_ladder(nlohmann::json const& value, std::string const& path) {
  if (value == "raise") return oom::raise::configured;
  bool const climbs_back = value.is_object() && value.contains("climb_back");
  if (!value.is_object() || value.size() != (climbs_back ? 2 : 1) || !value.contains("ladder") || !value["ladder"].is_array()) {
    throw_wrong(path, "must be \"raise\" or {\"ladder\": [rungs], \"climb_back\": updates}, where climb_back may be left out");
  }
  nlohmann::json const& rungs = value["ladder"];
  if (rungs.size() > static_cast<std::size_t>(oom::max_rungs)) {
    throw_wrong(path + "/ladder", "has more than " + std::to_string(oom::max_rungs) + " rungs");
  }
  oom::settings settings{.kind = oom::kind::ladder, .count = static_cast<int>(rungs.size())};
  for (std::size_t i = 0; i < rungs.size(); ++i) {
    settings.rungs[i] = read_policy<rung_format>(rungs[i], path + "/ladder/" + std::to_string(i));
  }
  if (climbs_back) {
    auto const& updates = value["climb_back"];
    bool const fits =
        updates.is_number_unsigned() && updates.get<unsigned long long>() <= std::numeric_limits<long long>::max();
    if (!fits) throw_wrong(path + "/climb_back", "must be a number of updates");
    settings.climbs_back = true;
    settings.climb_back = updates.get<long long>();
  }
  return settings;
}

inline void read_accepted(config& to, nlohmann::json const& value, std::string const& path) {
  if (!value.is_array()) throw_wrong(path, "must be a list of rule ids, such as [\"B06\"]");
  for (auto const& id : value) {
    if (!id.is_string()) throw_wrong(path, "must be a list of rule ids, such as [\"B06\"]");
    auto const word = id.get<std::string>();
    // A rule_id ends at the first zero byte, so that what follows would be accepted and ignored.
    if (word.find('\0') != std::string::npos)
      throw_wrong(path, "must be a list of rule ids, such as [\"B06\"], and \"" + printable(word, 20) + "\" holds a zero byte");
    if (to.accepted_count < max_accepted) to.accepted[to.accepted_count] = rule_id(word.c_str());
    ++to.accepted_count;
  }
}

struct run_format {
  static void fields(auto& s, auto& field) {
    field.number("world_size", s.world_size);
    field.updates("updates", s.updates);
    field.number("learning_rate", s.learning_rate);
    field.truth("half_kernels", s.half_kernels);
    field.truth("bfloat16_kernels", s.bfloat16_kernels);
  }
};

/// All or nothing: what is left out would count as known.
inline void read_run(config& to, nlohmann::json const& value, std::string const& path) {
  for (char const* const fact : {"world_size", "updates", "learning_rate"}) {
    if (!value.is_object() || !value.contains(fact)) {
      throw_wrong(path, std::string("needs world_size, updates and learning_rate, and lacks ") + fact);
    }
  }
  to.run.known = true;
  read_fields<run_format>(to.run, value, path);
  if (to.run.world_size < 1) throw_wrong(path + "/world_size", "must be at least 1");
}

template <class... Formats>
std::vector<std::string> slot_names(std::tuple<Formats...>*) {
  return {Formats::slot..., "oom", "accept", "run"};
}

template <class... Formats>
void read_slots(config& to, nlohmann::json const& document, std::tuple<Formats...>* all) {
  for (auto const& [key, value] : document.items()) {
    std::string const path = "/" + key;
    bool const known = ((key == Formats::slot && (Formats::of(to) = read_slot<Formats>(value, path), true)) || ...);
    if (known) continue;
    if (key == "oom") {
      to.oom = read_ladder(value, path);
    } else if (key == "accept") {
      read_accepted(to, value, path);
    } else if (key == "run") {
      read_run(to, value, path);
    } else {
      throw_unknown("", key, "slot", slot_names(all));
    }
  }
}

}  // namespace detail

/// A configuration from JSON text, not yet judged. Throws config_error (E13) that names the place: not JSON, more than 64
/// levels, an unknown key with the nearest known one, a key that stands twice, a value of another kind.
inline config parse_config(std::string const& text) {
  nlohmann::json const document = detail::parse_strictly(text);
  if (!document.is_object()) detail::throw_wrong("", "must be an object of slots");
  config value;
  detail::read_slots(value, document, static_cast<detail::slot_formats*>(nullptr));
  return value;
}

/// A configuration from a JSON file, not yet judged. Throws config_error (E13), file_error (E02).
inline config read_config(std::filesystem::path const& file) {
  std::error_code unknown;  // what cannot be looked at cannot be opened either
  std::ifstream stream(file, std::ios::binary);
  if (!stream.is_open() || std::filesystem::is_directory(file, unknown)) {
    throw file_error("E02", file.string() + " cannot be read. Look at its name and at its permissions.");
  }
  std::string const text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  try {
    return parse_config(text);
  } catch (config_error const& thrown) {
    throw thrown.in_file(file.string());
  }
}

/// Throws recipe_error with the ids and sentences of all rules that a configuration breaks, one a line.
inline void require_valid(config const& value, std::string const& source) {
  verdict const result = check(value);
  if (result.ok()) return;
  std::string sentences = source;
  std::vector<std::string> ids;
  for (violation const& one : result) {
    sentences += "\n" + std::string(describe(one).c_str());
    ids.emplace_back(one.id);
  }
  throw recipe_error(ids.front(), sentences, ids);
}

/// A configuration from a JSON file that breaks no rule. Throws config_error (E13), file_error (E02), recipe_error with all
/// broken rules.
inline config load_config(std::filesystem::path const& file) {
  config const value = read_config(file);
  require_valid(value, file.string() + " breaks rules that would waste the run:");
  return value;
}

}  // namespace keel
