// The bodies of recipe_numbers.hpp.
#pragma once

#include <keel/core/error.hpp>
#include <keel/step/recipe_numbers.hpp>
#include <string>

#include <keel/core/detail/body_begin.inc>

namespace keel::detail {

KEEL_BODY void take_numbers(config& to, numbers const& all) {
  std::string missing, unwanted, wrong;
  give(to, all, [&](number_fault fault, char const* name) {
    std::string& names = fault == number_fault::missing ? missing : fault == number_fault::unwanted ? unwanted : wrong;
    names += (names.empty() ? "." : ", .") + std::string(name);
  });
  std::string words;
  auto const add = [&](std::string const& sentence) { words += (words.empty() ? "" : "\n") + sentence; };
  if (!missing.empty())
    add("the recipe leaves " + missing + " to the program, and the program does not give it. Give each a number.");
  if (!unwanted.empty()) {
    add("the recipe does not leave " + unwanted +
        " to the program. Put keel::given in its place in the recipe, or remove the number.");
  }
  if (!wrong.empty())
    add(wrong + " is not a number of its kind: a count is a whole number that fits, and NaN is not a number. Change it.");
  if (!words.empty()) throw recipe_error("E22", words);
}

}  // namespace keel::detail

#include <keel/core/detail/body_end.inc>
