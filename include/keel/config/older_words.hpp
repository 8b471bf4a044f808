// Recipes in the words in which keel 0.1 wrote them into its checkpoints, such as "rollback 2, lower lr, attempts 2", as the JSON
// that to_json makes of the same settings.
#pragma once

#include <cstddef>
#include <keel/config/load_config.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace keel::detail {

inline std::vector<std::string> split_at_commas(std::string const& words) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end = words.find(", "); end != std::string::npos; end = words.find(", ", begin)) {
    parts.push_back(words.substr(begin, end - begin));
    begin = end + 2;
  }
  parts.push_back(words.substr(begin));
  return parts;
}

/// What stands between two commas: words, and the numbers after them.
struct phrase {
  std::string name;  ///< the words, with an underscore between them
  std::vector<nlohmann::json> numbers;

  explicit phrase(std::string const& text) {
    std::istringstream stream(text);
    for (std::string word; stream >> word;) {
      if (nlohmann::json const number = nlohmann::json::parse(word, nullptr, false); number.is_number()) {
        numbers.push_back(number);
      } else if (word == "infinity") {
        numbers.emplace_back(word);
      } else if (numbers.empty()) {
        name += (name.empty() ? "" : "_") + word;
      }  // else a unit, or the "after" between two numbers
    }
  }
};

/// Puts a phrase into the fields of a policy. Most are the field's name and its value.
inline void put_phrase(nlohmann::json& fields, phrase const& one) {
  static std::map<std::string, std::pair<char const*, nlohmann::json>> const truths = {
      {"raise_at_floor", {"raise_at_floor", true}}, {"continue_at_floor", {"raise_at_floor", false}},
      {"rank_local", {"agreed", false}},            {"of_the_average", {"averaged", true}},
      {"change_nothing", {"change", "nothing"}},    {"skip_data", {"change", "skip_data"}},
      {"lower_lr", {"change", "lower_lr"}},         {"reseed", {"change", "reseed"}}};
  if (auto const found = truths.find(one.name); found != truths.end()) {
    fields[found->second.first] = found->second.second;
  } else if (one.numbers.empty()) {
    fields[one.name] = true;
  } else if (one.name == "growth" || one.name == "backoff") {
    fields[one.name] = one.numbers.front();
    fields[one.name == "growth" ? "growth_interval" : "hysteresis"] = one.numbers.back();
  } else if (one.name == "milestones") {
    fields[one.name] = one.numbers;
  } else {
    fields[one.name == "in_a_row" ? "limit" : one.name] = one.numbers.front();
  }
}

/// Throws config_error for words that are not a slot's.
template <class Slot>
nlohmann::json slot_from_words(std::string const& words) {
  std::vector<std::string> const parts = split_at_commas(words);
  bool const is_custom_policy = parts.front().rfind("custom", 0) == 0;
  nlohmann::json fields = nlohmann::json::object();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (is_custom_policy && i + 1 == parts.size()) {
      fields["name"] = parts[i];
    } else if (parts[i].rfind("monitor ", 0) == 0) {
      fields["monitor"] = parts[i].substr(8);
    } else {
      put_phrase(fields, phrase(parts[i]));
    }
  }
  phrase const head(parts.front());
  std::string name = head.name.substr(0, head.name.find("_group"));
  if (name == "every" && parts.front().ends_with(" epochs")) name = "every_epochs";
  if (Slot::is_single && name == "none") return name;
  auto const& policies = policies_of<Slot>.all;
  auto const* policy = Slot::is_single ? &policies[std::size(policies) - 1] : find_policy_named<Slot>(name);
  if (policy == nullptr) throw_unknown("", name, "policy", policy_names<Slot>());
  if (!head.numbers.empty()) fields[policy->argument != nullptr ? policy->argument : "limit"] = head.numbers.front();
  if (Slot::is_single) return fields;
  return fields.empty() ? nlohmann::json(policy->name) : nlohmann::json{{policy->name, fields}};
}

}  // namespace keel::detail
