// A recipe's configuration, and values for the numbers that it leaves open. Each step has its own.
#pragma once

#include <keel/config/numbers.hpp>
#include <keel/libtorch/mode.hpp>
#include <keel/recipe/config_of.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Writes the numbers into a configuration. Throws recipe_error (E22), which names each number that is missing, that the recipe does not
/// leave open, or whose value is invalid.
void apply_numbers(config& to, numbers const& all);

/// Changes numbers during a run; only those that every update reads again can change. Throws recipe_error (E22), which names each number
/// that cannot change, that the recipe does not leave open, or whose value is invalid.
void change_numbers(config& present, config const& recipe, numbers const& changes);

/// True if the recipe leaves numbers to the program (keel::given).
template <class Recipe>
inline constexpr bool leaves_numbers_open = config_of<Recipe>.given > 0;

class recipe_numbers {
 public:
  /// For a recipe that leaves no numbers open.
  explicit recipe_numbers(config const& recipe) : recipe_(recipe), value_(recipe), present_(recipe) {}
  /// Throws recipe_error (E22), as apply_numbers does.
  recipe_numbers(config const& recipe, numbers const& all) : recipe_(recipe), value_(recipe), present_(recipe) {
    apply_numbers(value_, all);
    present_ = value_;
  }
  bool are_open() const { return recipe_.given > 0; }
  /// The recipe as declared by its types.
  config const& recipe() const { return recipe_; }
  /// The recipe with the numbers that the program passed at construction.
  config const& value() const { return value_; }
  /// The recipe with its current numbers, after change().
  config const& current() const { return present_; }
  void change(config const& present) { present_ = present; }
  bool is_changed() const { return !(present_ == value_); }

 private:
  config recipe_;
  config value_;
  config present_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/recipe_numbers.ipp>
#endif
