// Definitions for load_numbers.hpp.
#pragma once

#include <keel/json/load_config.hpp>
#include <keel/json/load_numbers.hpp>
#include <keel/libtorch/mode.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Returns true if the JSON of a slot contains the field, as a key or as the argument of a policy.
KEEL_BODY bool is_field_there(nlohmann::json const& value, char const* field, char const* argument) {
  if (!value.is_object()) return argument != nullptr && is_same(argument, field) && !value.is_string();
  if (value.contains(field)) return true;
  for (auto const& [key, inner] : value.items()) {
    if (inner.is_object() && inner.contains(field)) return true;
    // For example {"zscore": 3.0, "window": 64}.
    bool const is_number = inner.is_number() || inner.is_string();
    if (is_number && argument != nullptr && is_same(argument, field) && !value.contains(argument)) return true;
  }
  return false;
}

/// Reads the numbers that the recipe leaves open from a slot in a file. Throws config_error if file and recipe differ otherwise.
template <class Slot>
void take_slot(config const& recipe, nlohmann::json const& value, std::string const& path, numbers& to) {
  auto const from_file = read_slot<Slot>(value, path);
  auto const& here = recipe.*place<Slot>;
  auto const* const policy = policy_of_settings<Slot>(policies_of<Slot>, here);
  char const* const argument = policy == nullptr ? nullptr : policy->argument;
  auto expected = here;
  auto const look = [&](char const* field, auto& open) {
    if (!is_given(open)) return;
    auto copy = from_file;
    auto const take = [&](char const* other, auto& number) {
      using type = std::remove_reference_t<decltype(number)>;
      if constexpr (std::is_same_v<type, std::remove_reference_t<decltype(open)>>) {
        if (!is_same(other, field)) return;
        given_value* const into = to.find(Slot::name, field);
        if (into == nullptr) return;
        if (into->is_there()) throw_wrong(path, std::string("gives ") + field + " twice");
        if (is_field_there(value, field, argument)) *into = number;
        open = number;
      }
    };
    number_fields<decltype(take)> fields{take};
    Slot::fields(copy, fields);
  };
  number_fields<decltype(look)> fields{look};
  Slot::fields(expected, fields);
  if (expected == from_file) return;
  config program, file;
  program.*place<Slot> = here;
  file.*place<Slot> = from_file;
  throw_wrong(path, std::string("is ") + print_slot<Slot>(file, shown::set).c_str() + ", and the program was compiled with " +
                        print_slot<Slot>(program, shown::set).c_str() +
                        ". Policies and constants are types: change the file, or the recipe and compile it again");
}

KEEL_BODY number_place const* find_number_named(std::string const& name) {
  for (number_place const& one : number_places) {
    if (name == one.name) return &one;
  }
  return nullptr;
}

/// Reads a number by its own name. Durations have the unit of the recipe's field.
template <class Slot>
void take_number(config const& recipe, number_place const& at, nlohmann::json const& value, std::string const& path,
                 numbers& to) {
  auto settings = recipe.*place<Slot>;
  nlohmann::json const object{{at.field, value}};
  json_fields fields(object, path, std::string(" ") + at.field + " ", at.field, path);
  bool is_open = false;
  auto const look = [&](char const* field, auto& number) { is_open |= is_same(field, at.field) && is_given(number); };
  auto copy = settings;
  number_fields<decltype(look)> opens{look};
  Slot::fields(copy, opens);
  if (!is_open) {
    throw_wrong(path,
                "is not a number that the recipe leaves open. Put keel::given in its place in the recipe, or remove it from "
                "the file");
  }
  given_value& into = to.*(at.member);
  if (into.is_there()) throw_wrong(path, "stands there twice: also in the slot " + std::string(at.slot));
  Slot::fields(settings, fields);
  auto const take = [&](char const* field, auto& number) {
    if (is_same(field, at.field)) into = number;
  };
  number_fields<decltype(take)> takes{take};
  Slot::fields(settings, takes);
}

template <class... Slots>
numbers read_numbers(config const& recipe, nlohmann::json const& document, slot_list<Slots...>) {
  if (!document.is_object()) throw_wrong("", "must be an object of numbers by name");
  numbers found;
  std::vector<std::string> known;
  config copy = recipe;
  for_each_given(copy, [&](char const* slot, char const* field, auto&) {
    if (auto const* const at = find_number(slot, field)) known.emplace_back(at->name);
  });
  for (auto const& [key, value] : document.items()) {
    std::string const path = "/" + key;
    auto const* const at = find_number_named(key);
    bool const is_duration = value.is_string() && !value.template get_ref<std::string const&>().empty() &&
                             value.template get_ref<std::string const&>()[0] >= '0' &&
                             value.template get_ref<std::string const&>()[0] <= '9';
    bool is_taken = false;
    if (at != nullptr && (value.is_number() || is_duration || key != at->slot)) {
      ((is_same(at->slot, Slots::name) && (take_number<Slots>(recipe, *at, value, path, found), is_taken = true)) || ...);
    } else {
      ((key == Slots::name && (take_slot<Slots>(recipe, value, path, found), is_taken = true)) || ...);
    }
    if (!is_taken) throw_unknown("the file of numbers", key, "number", known);
  }
  std::string missing;
  for_each_given(copy, [&](char const* slot, char const* field, auto&) {
    auto const* const at = find_number(slot, field);
    if (at != nullptr && !(found.*(at->member)).is_there()) missing += (missing.empty() ? "" : ", ") + std::string(at->name);
  });
  if (!missing.empty()) throw_wrong("", "lacks " + missing + ", which the recipe leaves to it");
  return found;
}

KEEL_BODY read_numbers_and_value numbers_in(config const& recipe, nlohmann::json const& object) {
  numbers const found = read_numbers(recipe, object, slots{});
  config value = recipe;
  std::string wrong;
  give(value, found, [&](number_fault, char const* name) { wrong += (wrong.empty() ? "" : ", ") + std::string(name); });
  if (!wrong.empty()) throw_wrong("", "has an invalid value for " + wrong + ": a count must be an integer in range");
  return {found, value};
}

KEEL_BODY read_numbers_and_value numbers_in_file(config const& recipe, std::filesystem::path const& file) {
  try {
    return numbers_in(recipe, parse_strictly(text_of_file(file)));
  } catch (config_error const& thrown) {
    throw thrown.in_file(file.string());
  }
}

KEEL_BODY void require_sound_numbers(verdict const& judged) {
  require_ok(judged, "the numbers break rules that would waste the run:");
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
