// What the static tests of the rules share. Each family has a file that shows every rule of it broken and kept, and then takes
// each predicate apart: whoever deletes or turns round one clause of it makes one of these assertions fail.
#pragma once

#include <bit>
#include <keel/recipe.hpp>
#include <limits>
#include <type_traits>

namespace judged {

namespace rule = keel::rule;
using keel::check;
using keel::config;
using keel::origin;
using keel::recipe;
using keel::verdict;
using keel::violations;

/// `broken` breaks this rule and no other, and `kept`, a neighbour of it, keeps all. A rule without an example does not
/// compile.
template <class Rule>
struct example;

template <class Broken, class Kept>
struct recipes {
  static constexpr verdict broken = violations<Broken>;
  static constexpr verdict kept = violations<Kept>;
};

template <class Rule>
struct shown {
  static_assert(rule::value_rule<Rule>);
  static_assert(example<Rule>::broken.has(Rule::id));
  static_assert(example<Rule>::broken.size() == 1);
  static_assert(example<Rule>::kept.ok());
};
template <class Family>
struct each_shown;
template <class... Rules>
struct each_shown<rule::list<Rules...>> : shown<Rules>... {};

/// The configuration of a recipe with these policies.
template <class... Policies>
inline constexpr config const& of = keel::config_of<recipe<Policies...>>;

/// The same where a trainer is built, which knows the run.
constexpr config in_run(config c, keel::run_facts facts) {
  c.run = facts;
  c.run.known = true;
  return c;
}

template <class... Rungs>
using ladder = keel::oom::ladder<Rungs...>;

/// The configuration itself breaks these rules, and nothing else stands broken.
template <class... Rules>
constexpr bool breaks(config const& c) {
  static_assert(sizeof...(Rules) > 0);
  verdict const found = check(c);
  if (found.size() != static_cast<int>(sizeof...(Rules))) return false;
  for (keel::violation const& one : found) {
    if (one.from != origin::recipe || one.number != 0) return false;
  }
  return (found.has(Rules::id) && ...);
}

/// The run can come to break this rule, that way, and nothing else stands broken.
template <class Rule>
constexpr bool reaches(config const& c, origin from, int number = 0) {
  verdict const found = check(c);
  return found.size() == 1 && found.has(Rule::id) && found.begin()->from == from && found.begin()->number == number;
}

constexpr bool keeps(config const& c) { return check(c).ok(); }

inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// The largest and the smallest number that a file can hold.
inline constexpr long long most = std::numeric_limits<long long>::max();
inline constexpr long long least = std::numeric_limits<long long>::min();

/// The numbers next to a positive one.
constexpr double below(double number) { return std::bit_cast<double>(std::bit_cast<unsigned long long>(number) - 1); }
constexpr double above(double number) { return std::bit_cast<double>(std::bit_cast<unsigned long long>(number) + 1); }

}  // namespace judged
