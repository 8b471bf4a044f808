// The compile error of a broken rule. Most rules have their text as a literal in their own static_assert. For rules with the text as a
// constant, this header generates the error: with the text itself, or with a type whose name contains it.
#pragma once

#include <keel/rule/rule.hpp>

// Suppresses warnings about computed texts, which compilers accept in C++20 as an extension, and makes g++ point at the rule.
#pragma GCC system_header

namespace keel::rule {

/// A piece of a text as a template argument.
template <int Size>
struct piece {
  char letters[Size];
};

/// Named in the error of compilers whose static_assert only accepts literals. Never defined.
template <piece... Text>
struct broken_rule;

namespace detail {

template <class Rule, bool Holds, class Recipe>
struct generic_demand {};

#if defined(__clang__) ? __clang_major__ >= 20 : __GNUC__ >= 14

/// A text in the form that static_assert accepts.
struct message {
  char const* letters;
  constexpr char const* data() const { return letters; }
  constexpr decltype(sizeof 0) size() const { return static_cast<decltype(sizeof 0)>(keel::detail::length(letters)); }
};
template <class Rule, class Recipe>
struct generic_demand<Rule, false, Recipe> {
  static_assert(false, message{Rule::text});
};

#elif defined(__clang__)

/// Returns the end of the piece that starts at `begin`: after the last blank before the length at which clang truncates it.
constexpr int end_of_piece(char const* text, int begin) {
  int end = begin;
  int blank = begin;
  while (text[end] != '\0' && end - begin < 34) {
    if (text[end++] == ' ') blank = end;
  }
  return text[end] == '\0' || blank == begin ? end : blank;
}
template <class Rule, int Begin>
constexpr auto piece_of() {
  constexpr int size = end_of_piece(Rule::text, Begin) - Begin;
  piece<size + 1> words{};
  // Includes the terminating zero: clang prints uninitialized letters as numbers.
  for (int i = 0; i <= size; ++i) words.letters[i] = i < size ? Rule::text[Begin + i] : '\0';
  return words;
}
template <class Rule, int Begin, piece... Before>
constexpr auto named_by_pieces() {
  if constexpr (Rule::text[Begin] == '\0') {
    return static_cast<broken_rule<Before...>*>(nullptr);
  } else {
    return named_by_pieces<Rule, end_of_piece(Rule::text, Begin), Before..., piece_of<Rule, Begin>()>();
  }
}
template <class Rule, class Recipe>
struct generic_demand<Rule, false, Recipe> : std::remove_pointer_t<decltype(named_by_pieces<Rule, 0>())> {};

#else

template <class Rule>
constexpr auto whole_text() {
  constexpr int size = keel::detail::length(Rule::text) + 1;
  piece<size> words{};
  for (int i = 0; i < size; ++i) words.letters[i] = Rule::text[i];
  return words;
}
template <class Rule, class Recipe>
struct generic_demand<Rule, false, Recipe> : broken_rule<whole_text<Rule>()> {};

#endif

template <class Rule, bool Holds, class Recipe>
struct demand_by {
  using type = generic_demand<Rule, Holds, Recipe>;
};
template <class Rule, bool Holds, class Recipe>
  requires requires { typename Rule::template demand<true, void>; }
struct demand_by<Rule, Holds, Recipe> {
  using type = typename Rule::template demand<Holds, Recipe>;
};

}  // namespace detail

/// Causes an error with the rule's text unless `Holds`; `Recipe` appears in the compiler's notes.
template <class Rule, bool Holds, class Recipe>
using demand = typename detail::demand_by<Rule, Holds, Recipe>::type;

}  // namespace keel::rule
