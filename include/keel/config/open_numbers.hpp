// Finds the numbers of a configuration that are open until the program supplies them (policy/given.hpp).
#pragma once

#include <initializer_list>
#include <keel/config/config.hpp>
#include <keel/policy/given.hpp>
#include <type_traits>

namespace keel::detail {

/// Counts a slot's open numbers. Instantiated for every recipe, so almost nothing here is a template.
struct given_counter {
  int count = 0;
  constexpr void number(char const*, double value) { count += is_given(value); }
  constexpr void number(char const*, long long value) { count += is_given(value); }
  constexpr void number(char const*, unsigned long long value) { count += is_given(value); }
  constexpr void number(char const*, int) {}
  constexpr void number_between(char const*, int, int, int) {}
  constexpr void number_or_infinity(char const*, double value) { count += is_given(value); }
  constexpr void optional_number(char const*, double value, bool) { count += is_given(value); }
  constexpr void updates(char const*, long long value) { count += is_given(value); }
  constexpr void optional_updates(char const*, long long value, bool) { count += is_given(value); }
  constexpr void epochs(char const*, long long value) { count += is_given(value); }
  constexpr void tokens(char const*, long long value) { count += is_given(value); }
  constexpr void seconds(char const*, long long value) { count += is_given(value); }
  constexpr void truth(char const*, bool) {}
  constexpr void name(char const*, char const*) {}
  constexpr void list_of_updates(char const*, long long const*, int) {}
  constexpr void choice(char const*, auto, std::initializer_list<char const*>) {}
  constexpr void list(char const*, auto const&, int, auto) {}
};

/// Returns how many numbers of a slot are open.
template <class Slot>
constexpr int count_given(typename Slot::settings settings) {
  given_counter counter;
  Slot::fields(settings, counter);
  return counter.count;
}

/// Calls `visit(field, value)` for each number of a slot, in any unit, and for no other field.
template <class Visit>
struct number_fields {
  Visit& visit;
  constexpr void number(char const* name, auto& to) { visit(name, to); }
  constexpr void number_between(char const* name, int& to, int /*least*/, int /*most*/) { visit(name, to); }
  constexpr void number_or_infinity(char const* name, double& to) { visit(name, to); }
  constexpr void optional_number(char const* name, double& to, bool /*is_set*/) { visit(name, to); }
  constexpr void updates(char const* name, long long& to) { visit(name, to); }
  constexpr void optional_updates(char const* name, long long& to, bool /*is_set*/) { visit(name, to); }
  constexpr void epochs(char const* name, long long& to) { visit(name, to); }
  constexpr void tokens(char const* name, long long& to) { visit(name, to); }
  constexpr void seconds(char const* name, long long& to) { visit(name, to); }
  constexpr void truth(char const*, auto&) {}
  constexpr void name(char const*, auto&) {}
  template <int Size>
  constexpr void list_of_updates(char const*, long long (&)[Size], int) {}
  template <class Enum, int Size>
  constexpr void choice(char const*, Enum&, char const* const (&)[Size]) {}
  template <class Settings, int Size, class Description>
  constexpr void list(char const*, Settings (&)[Size], int, Description) {}
};

/// Calls `visit(slot, field, value)` for each open number of a configuration.
template <class Visit, class... Slots>
constexpr void for_each_given(config& value, Visit& visit, slot_list<Slots...>) {
  auto const look_into = [&]<class Slot>(Slot*) {
    auto const look = [&](char const* field, auto& number) {
      if (is_given(number)) visit(Slot::name, field, number);
    };
    number_fields<decltype(look)> fields{look};
    Slot::fields(value.*place<Slot>, fields);
  };
  (look_into(static_cast<Slots*>(nullptr)), ...);
}
template <class Visit>
constexpr void for_each_given(config& value, Visit visit) {
  for_each_given(value, visit, slots{});
}

/// Returns the settings of a policy that is used without a trainer, which would supply its numbers.
template <class Policy>
consteval typename Policy::in_slot::settings closed_settings() {
  static_assert(
      count_given<typename Policy::in_slot>(Policy::configured) == 0,
      "keel::given is a number that a trainer or a step is given. Fix: a number, or the settings of the policy as a value.");
  return Policy::configured;
}

}  // namespace keel::detail
