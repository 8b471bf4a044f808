// Loads the open numbers of a recipe (policy/given.hpp) from a file. The program has the policies, as types. The file has the numbers, with
// the names of keel::numbers, or as slots in the format of json/load_config.hpp:
//     {"clip": 1.0, "accumulate": 4, "checkpoint": "500_steps"}
//     {"clip": {"zscore": 3.0, "window": 64}, "accumulate": 4, "checkpoint": {"every_steps": {"interval": 500}}}
// A slot must have the same policy as in the recipe, and the same constants if it contains them.
#pragma once

#include <filesystem>
#include <keel/config/numbers.hpp>
#include <keel/core/error.hpp>
#include <keel/recipe/validated.hpp>
#include <nlohmann/json_fwd.hpp>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

/// The numbers of a file, and the recipe with these numbers, which is not checked yet.
using read_numbers_and_value = std::pair<numbers, config>;
read_numbers_and_value numbers_in(config const& recipe, nlohmann::json const& object);
read_numbers_and_value numbers_in_file(config const& recipe, std::filesystem::path const& file);

/// Throws recipe_error with all rules that the numbers break.
void require_sound_numbers(verdict const& judged);

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Reads the open numbers of `Recipe` from a JSON object, which may be part of a larger file. Throws config_error (E13) with the location:
/// an unknown name, a policy or constant that differs from the recipe's, a number that is missing, given twice or of the wrong kind. Throws
/// recipe_error with all rules that the numbers break.
template <class Recipe>
numbers read_numbers(nlohmann::json const& object) {
  // The recipe may be that of a run of several models, whose parts have the rest; a trainer's constructor checks all of it.
  auto const [found, value] = detail::numbers_in(config_of<Recipe>, object);
  detail::require_sound_numbers(check_as<Recipe>(detail::with_parts(value)));
  return found;
}

/// The same for a file that contains nothing else. Also throws file_error (E02).
template <class Recipe>
numbers load_numbers(std::filesystem::path const& file) {
  auto const [found, value] = detail::numbers_in_file(config_of<Recipe>, file);
  detail::require_sound_numbers(check_as<Recipe>(detail::with_parts(value)));
  return found;
}

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/json/load_numbers.ipp>
#endif
