// Definitions for recipe_numbers.hpp.
#pragma once

#include <keel/core/error.hpp>
#include <keel/step/recipe_numbers.hpp>
#include <string>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void apply_numbers(config& to, numbers const& all) {
  std::string missing, unwanted, wrong;
  give(to, all, [&](number_fault fault, char const* name) {
    std::string& names = fault == number_fault::missing ? missing : fault == number_fault::unwanted ? unwanted : wrong;
    names += (names.empty() ? "." : ", .") + std::string(name);
  });
  std::string message;
  auto const add = [&](std::string const& sentence) { message += (message.empty() ? "" : "\n") + sentence; };
  if (!missing.empty())
    add("no value for " + missing + ", which the recipe leaves open with keel::given. Pass a number for each.");
  if (!unwanted.empty()) {
    add("the recipe fixes " + unwanted + ". Put keel::given in its place in the recipe, or remove the number.");
  }
  if (!wrong.empty())
    add("invalid value for " + wrong + ": a count must be an integer in range, and no number may be NaN. Correct it.");
  if (!message.empty()) throw recipe_error("E22", message);
}

KEEL_BODY void change_numbers(config& present, config const& recipe, numbers const& changes) {
  numbers left = changes;
  std::string message;
  auto const add = [&](std::string const& sentence) { message += (message.empty() ? "" : "\n") + sentence; };
  auto const change = [&](given_value numbers::* member, char const* name, auto const& in_recipe, auto& to) {
    given_value const number = std::exchange(left.*member, {});
    if (!number.is_there()) return;
    if (!is_given(in_recipe)) {
      add(std::string("the recipe fixes .") + name +
          ". Put keel::given in its place in the recipe, or leave the number as it is.");
    } else if (!number.put(to)) {
      add(std::string("invalid value for .") + name +
          ": a count must be an integer in range, and no number may be NaN. Correct it.");
    }
  };
  change(&numbers::accumulate, "accumulate", recipe.accumulate.count, present.accumulate.count);
  change(&numbers::clip, "clip", recipe.clip.limit, present.clip.limit);
  for (number_place const& place : number_places) {
    if ((left.*(place.member)).is_there())
      add(std::string(".") + place.name +
          " cannot change during a run; only .accumulate and .clip can. Pass it to the constructor, or use a schedule.");
  }
  if (!message.empty()) throw recipe_error("E22", message);
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
