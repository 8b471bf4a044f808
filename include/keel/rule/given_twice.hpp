// For each slot, the rule that a recipe fills it only once: P03, G07, S14, Z01 and the D rules that the slots name.
#pragma once

#include <keel/policy/text.hpp>
#include <keel/rule/rule.hpp>

namespace keel::rule {

namespace detail {

/// Two policies for one slot, and the one to keep.
template <class Slot>
constexpr text<320> sentence_on_two() {
  text<320> words;
  words << "[" << Slot::given_twice << "] two " << Slot::name << " policies in one recipe: only one can apply. Fix: ";
  if (Slot::keep_one != nullptr) return words << Slot::keep_one << ".";
  words << "keep one of keel::" << Slot::name << "::{";
  char const* before = "";
  for (auto const& policy : Slot::policies().all) {
    char const* const name = policy.typed != nullptr ? policy.typed : policy.name;
    if (keel::detail::is_same(name, before) || keel::detail::is_same(name, "custom")) continue;
    words << (*before == '\0' ? "" : ", ") << name;
    before = name;
  }
  return words << "}.";
}

template <class Slot, int Index>
struct given_twice {
  static constexpr char const* id = Slot::given_twice;
  static constexpr keel::text<320> sentence = sentence_on_two<Slot>();
  static constexpr char const* text = sentence.c_str();
  static constexpr char const* passes = "";
  static constexpr int has_words_for = 0;
  static constexpr bool broken(config const& c) { return (c.repeated >> Index & 1U) != 0; }
};

template <class... Slots, int... Index>
list<given_twice<Slots, Index>...> all_given_twice(slot_list<Slots...>, std::integer_sequence<int, Index...>);

}  // namespace detail

template <class Slot>
using given_twice = detail::given_twice<Slot, index_of<Slot>>;

using given_twice_rules = decltype(detail::all_given_twice(slots{}, std::make_integer_sequence<int, slot_count>{}));

}  // namespace keel::rule
