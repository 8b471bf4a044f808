// A recipe's configuration with the numbers that it leaves open. Each step has its own.
#pragma once

#include <keel/config/numbers.hpp>
#include <keel/libtorch/mode.hpp>
#include <keel/recipe/config_of.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Puts the numbers into a configuration. Throws recipe_error (E22) that names each one that was not given, that the recipe does not
/// leave open, or that is not a number of its kind.
void take_numbers(config& to, numbers const& all);

/// Changes numbers while a run goes on: those that every update reads again. Throws recipe_error (E22) that names each other one, each that
/// the recipe does not leave open, and each that is not a number of its kind.
void change_numbers(config& present, config const& recipe, numbers const& some);

template <class Recipe>
class recipe_numbers {
 public:
  static constexpr bool are_open = config_of<Recipe>.given > 0;
  recipe_numbers() = default;
  explicit recipe_numbers(numbers const& all) {
    config none = config_of<Recipe>;
    take_numbers(none, all);
  }
  static constexpr config const& value() { return config_of<Recipe>; }
  static constexpr config const& present() { return config_of<Recipe>; }
};

template <class Recipe>
  requires(config_of<Recipe>.given > 0)
class recipe_numbers<Recipe> {
 public:
  static constexpr bool are_open = true;
  explicit recipe_numbers(numbers const& all) {
    take_numbers(value_, all);
    present_ = value_;
  }
  /// With the numbers that the program gave.
  config const& value() const { return value_; }
  /// With those that it changed since.
  config const& present() const { return present_; }
  void change(config const& present) { present_ = present; }
  bool is_changed() const { return !(present_ == value_); }

 private:
  config value_ = config_of<Recipe>;
  config present_ = config_of<Recipe>;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/recipe_numbers.ipp>
#endif
