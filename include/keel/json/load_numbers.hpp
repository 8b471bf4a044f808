// The numbers of a recipe that leaves some open (policy/given.hpp), from a file. The program has the policies, as types; the file
// has the numbers, by the names of keel::numbers, or as slots in the words of json/load_config.hpp:
//     {"clip": 1.0, "accumulate": 4, "checkpoint": "500_steps"}
//     {"clip": {"zscore": 3.0, "window": 64}, "accumulate": 4, "checkpoint": {"every_steps": {"interval": 500}}}
// A slot must be of the policy that the recipe has, and repeat its constants if it names them.
#pragma once

#include <filesystem>
#include <keel/config/numbers.hpp>
#include <keel/core/error.hpp>
#include <keel/recipe/valid.hpp>
#include <nlohmann/json.hpp>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

/// What a file has for a recipe, and the recipe with it; not yet judged.
using read_numbers_and_value = std::pair<numbers, config>;
read_numbers_and_value numbers_in(config const& recipe, nlohmann::json const& object);
read_numbers_and_value numbers_in_file(config const& recipe, std::filesystem::path const& file);

/// Throws recipe_error with all rules that the numbers break.
void require_sound_numbers(verdict const& judged);

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// The numbers that `Recipe` leaves open, from a JSON object: a part of a file that has other things in it too. Throws config_error
/// (E13) that names the place: an unknown name, a policy or constant that is not the recipe's, a number that is missing, given
/// twice or not of its kind; recipe_error with all rules that the numbers break.
template <class Recipe>
numbers read_numbers(nlohmann::json const& object) {
  auto const [found, value] = detail::numbers_in(config_of<Recipe>, object);
  detail::require_sound_numbers(check_as<Recipe>(value));
  return found;
}

/// The same from a file, which has nothing else in it. Throws file_error (E02) too.
template <class Recipe>
numbers load_numbers(std::filesystem::path const& file) {
  auto const [found, value] = detail::numbers_in_file(config_of<Recipe>, file);
  detail::require_sound_numbers(check_as<Recipe>(value));
  return found;
}

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/json/load_numbers.ipp>
#endif
