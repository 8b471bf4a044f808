// Checks a configuration value at run time, with the predicates that the compiler uses.
#pragma once

#include <concepts>
#include <keel/policy/text.hpp>
#include <keel/recipe/judge.hpp>

namespace keel {

/// A broken rule: its id, such as "A01", its message with the fix, and how the run reaches it.
struct violation {
  char const* id = nullptr;      ///< such as "A01"
  char const* text = nullptr;    ///< the message, with its fix
  origin from = origin::recipe;  ///< how the run reaches the configuration that breaks it
  int number = 0;                ///< position of the rung on its ladder, from 1; otherwise 0
};

/// The broken rules of one configuration, each once, in the order of the catalogue. A range of violations.
class verdict {
 public:
  /// True if no rule is broken.
  constexpr bool ok() const { return count_ == 0; }
  /// Returns the number of broken rules.
  constexpr int size() const { return count_; }
  /// Returns an iterator to the first broken rule.
  constexpr violation const* begin() const { return broken_; }
  /// Returns the end of the range.
  constexpr violation const* end() const { return broken_ + count_; }
  /// Returns true if the rule with this id is broken.
  constexpr bool has(char const* id) const {
    for (violation const& one : *this) {
      if (keel::detail::begins_with(one.id, id) && keel::detail::length(one.id) == keel::detail::length(id)) return true;
    }
    return false;
  }
  /// Larger than the number of keel's rules; the difference limits a recipe's custom rules.
  static constexpr int capacity = 256;
  /// Adds a broken rule; ignores those beyond the capacity.
  constexpr void add(violation const& one) {
    if (count_ < capacity) broken_[count_++] = one;
  }

 private:
  int count_ = 0;
  violation broken_[capacity] = {};
};

namespace detail {

template <class Rules>
struct verdict_writer {
  verdict& to;
  constexpr void operator()(int rule, origin from, int number) const {
    to.add({rule_table<Rules>::entries[rule].id, rule_texts<Rules>::all[rule], from, number});
  }
};

template <class Rules>
constexpr verdict verdict_on(config const& value) {
  verdict result;
  judge<Rules>(value, verdict_writer<Rules>{result});
  return result;
}
/// The same for a configuration without open numbers.
template <class Rules>
constexpr verdict verdict_on_whole(config const& value) {
  verdict result;
  judge_whole<Rules>(value, verdict_writer<Rules>{result});
  return result;
}

}  // namespace detail

/// Formats a broken rule as the compiler reports it: "reached by rung 2 of oom::ladder: [A01] ..".
constexpr slot_text describe(violation const& broken) {
  slot_text out;
  switch (broken.from) {
    case origin::recipe:
      break;
    case origin::rung:
      out << "reached by rung " << broken.number << " of oom::ladder: ";
      break;
    case origin::rollback:
      out << "reached by nonfinite::rollback: ";
      break;
    case origin::floor:
      out << "reached by loss_scale::floor: ";
      break;
  }
  return out << broken.text;
}

/// Checks a configuration against keel's rules. Set `config::run` first if the run-time facts are known. Custom rules in a recipe are types
/// and not part of its configuration; check_as<Recipe> includes them. A template, so that a recipe that is not checked here costs nothing.
constexpr verdict check(std::same_as<config> auto const& value) {
  config by_keel = value;
  by_keel.accepted_count = 0;
  for (int i = 0; i < value.accepted_count; ++i) {
    bool const listed = i < max_accepted;
    if (listed && !rule::is_id_of_keel(value.accepted[i])) continue;
    if (listed) by_keel.accepted[by_keel.accepted_count] = value.accepted[i];
    ++by_keel.accepted_count;
  }
  return detail::verdict_on<detail::judged_rules>(by_keel);
}

}  // namespace keel
