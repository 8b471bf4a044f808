// The run-time door: judges a configuration value by the same predicates as the compiler.
#pragma once

#include <concepts>
#include <keel/policy/text.hpp>
#include <keel/recipe/judge.hpp>

namespace keel {

/// A broken rule: its id, such as "A01", its sentence with the fix, and how the run comes to break it.
struct violation {
  char const* id = nullptr;      ///< such as "A01"
  char const* text = nullptr;    ///< the sentence, with its fix
  origin from = origin::recipe;  ///< how the run comes to break it
  int number = 0;                ///< of the rung on its ladder, from 1; 0 elsewhere
};

/// The broken rules of one configuration, each once, in the catalogue's order. A range of violations.
class verdict {
 public:
  /// True if no rule is broken.
  constexpr bool ok() const { return count_ == 0; }
  /// Broken rules.
  constexpr int size() const { return count_; }
  /// The first of them.
  constexpr violation const* begin() const { return broken_; }
  /// Behind the last.
  constexpr violation const* end() const { return broken_ + count_; }
  /// True if the rule with this id is among them.
  constexpr bool has(char const* id) const {
    for (violation const& one : *this) {
      if (keel::detail::begins_with(one.id, id) && keel::detail::length(one.id) == keel::detail::length(id)) return true;
    }
    return false;
  }
  /// A recipe has no room for more custom rules than this is above the catalogue's number.
  static constexpr int capacity = 256;
  /// Adds one; what is above the capacity is left out.
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
/// The same for a configuration that has all its numbers.
template <class Rules>
constexpr verdict verdict_on_whole(config const& value) {
  verdict result;
  judge_whole<Rules>(value, verdict_writer<Rules>{result});
  return result;
}

}  // namespace detail

/// A broken rule as the compiler says it: "reached by rung 2 of oom::ladder: [A01] ..".
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

/// Judges a configuration by keel's rules; fill `config::run` first if the run-time facts are known. Rules that stand in a
/// recipe are types and not in its configuration: for those there is check_as<Recipe>. A template, so that a recipe that is not judged
/// here costs nothing.
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
