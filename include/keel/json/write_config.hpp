// Writes a configuration as JSON in the format of load_config: every slot with all settings of its policy, so that a later change of
// defaults does not affect it. Run directories contain it as recipe.json.
#pragma once

#include <keel/config/describe.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

namespace keel {

namespace detail {

template <class Description, class Settings>
nlohmann::json policy_to_json(Settings settings, bool is_single);

/// Collects the fields of a policy in one JSON object.
class json_writer {
 public:
  /// `taken`: the fields that the policy takes, between blanks, or "*".
  explicit json_writer(char const* taken) : taken_(taken) {}

  void truth(char const* name, bool value) { put(name, value); }
  void number(char const* name, auto value) { put(name, value); }
  void number_between(char const* name, int value, int /*least*/, int /*most*/) { put(name, value); }
  void number_or_infinity(char const* name, double value) {
    if (value > std::numeric_limits<double>::max() || value < std::numeric_limits<double>::lowest()) {
      put(name, value > 0 ? "infinity" : "-infinity");
    } else {
      put(name, value);
    }
  }
  void optional_number(char const* name, double value, bool is_set) {
    if (is_set) number_or_infinity(name, value);
  }
  void updates(char const* name, long long value) { put(name, with_unit(value, "_steps")); }
  void optional_updates(char const* name, long long value, bool is_set) {
    if (is_set) updates(name, value);
  }
  void epochs(char const* name, long long value) { put(name, with_unit(value, "_epochs")); }
  void tokens(char const* name, long long value) { put(name, with_unit(value, "_tokens")); }
  void seconds(char const* name, long long value) { put(name, with_unit(value, "_s")); }
  template <int Size>
  void list_of_updates(char const* name, long long const (&values)[Size], int count) {
    nlohmann::json list = nlohmann::json::array();
    for (int i = 0; i < count && i < Size; ++i) list.push_back(with_unit(values[i], "_steps"));
    put(name, list);
  }
  void name(char const* name, char const* letters) {
    if (*letters != '\0') put(name, letters);
  }
  template <class Enum, int Size>
  void choice(char const* name, Enum value, char const* const (&names)[Size]) {
    put(name, names[static_cast<int>(value)]);
  }
  template <class Settings, int Size, class Description>
  void list(char const* name, Settings const (&values)[Size], int count, Description /*description*/) {
    nlohmann::json list = nlohmann::json::array();
    for (int i = 0; i < count && i < Size; ++i) list.push_back(policy_to_json<Description>(values[i], false));
    put(name, list);
  }

  nlohmann::json const& object() const { return object_; }

 private:
  template <class Value>
  void put(char const* name, Value const& value) {
    if (!takes(taken_, name)) return;
    object_[name] = value;
    if constexpr (std::is_arithmetic_v<Value> && !std::is_same_v<Value, bool>) {
      if (is_given(value)) object_[name] = "given";
    }
  }
  /// Returns a number without a unit if the reader would not accept one.
  static nlohmann::json with_unit(long long value, char const* unit) {
    if (is_given(value)) return "given";
    bool const is_read_with_unit = value >= 0 && value < 1'000'000'000'000;
    return is_read_with_unit ? nlohmann::json(std::to_string(value) + unit) : nlohmann::json(value);
  }

  char const* taken_;
  nlohmann::json object_ = nlohmann::json::object();
};

template <class Description, class Settings>
nlohmann::json policy_to_json(Settings settings, bool is_single) {
  auto const policies = Description::policies();
  auto const* const policy = policy_of_settings<Description>(policies, settings);
  if (policy == nullptr) return nullptr;
  if (*policy->fields == '\0') return policy->name;
  json_writer fields(policy->fields);
  Description::fields(settings, fields);
  return is_single ? fields.object() : nlohmann::json{{policy->name, fields.object()}};
}

template <class Slot>
nlohmann::json slot_to_json(config const& value) {
  return policy_to_json<Slot>(value.*place<Slot>, Slot::is_single);
}

template <class... Slots>
nlohmann::json slots_to_json(config const& value, slot_list<Slots...>) {
  nlohmann::json written = nlohmann::json::object();
  ((written[Slots::name] = slot_to_json<Slots>(value)), ...);
  return written;
}

}  // namespace detail

/// Returns the configuration as a JSON object for parse_config. A custom policy is written as "custom" with its name, which no file can
/// restore. Custom rules are types and not part of a recipe's configuration.
inline nlohmann::json to_json(config const& value) {
  nlohmann::json written = detail::slots_to_json(value, slots{});
  for (int i = 0; i < value.accepted_count && i < max_accepted; ++i) {
    std::string id;
    for (int shift = 56; shift >= 0; shift -= 8) {
      char const letter = static_cast<char>(value.accepted[i].packed >> shift & 0xff);
      if (letter != '\0') id += letter;
    }
    written["accept"].push_back(id);
  }
  if (value.run.known) {
    written["run"] = {{"world_size", value.run.world_size},
                      {"updates", value.run.updates},
                      {"learning_rate", value.run.learning_rate},
                      {"half_kernels", value.run.half_kernels},
                      {"bfloat16_kernels", value.run.bfloat16_kernels}};
  }
  return written;
}

}  // namespace keel
