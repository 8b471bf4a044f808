// The run-time door: judges a configuration value by the same predicates as the compiler.
#pragma once

#include <keel/rule/catalogue.hpp>

namespace keel {

/// A broken rule: its id, such as "A01", and its sentence with the fix.
struct violation {
  char const* id = nullptr;
  char const* text = nullptr;
};

namespace detail {
template <class... Rules>
constexpr int count_rules(rule::list<Rules...>) {
  return sizeof...(Rules);
}
}  // namespace detail

/// The broken rules of one configuration, each once, in the catalogue's order. A range of violations.
class verdict {
 public:
  constexpr bool ok() const { return count_ == 0; }
  constexpr int size() const { return count_; }
  constexpr violation const* begin() const { return broken_; }
  constexpr violation const* end() const { return broken_ + count_; }
  constexpr bool has(char const* id) const {
    for (violation const& one : *this) {
      char const* a = one.id;
      char const* b = id;
      while (*a != '\0' && *a == *b) ++a, ++b;
      if (*a == *b) return true;
    }
    return false;
  }
  constexpr void add(violation const& one) { broken_[count_++] = one; }

 private:
  int count_ = 0;
  violation broken_[detail::count_rules(rule::catalogue{})] = {};
};

namespace detail {
template <class... Rules>
constexpr verdict judge(config const& value, rule::list<Rules...>) {
  verdict result;
  ((Rules::broken(value) ? result.add({Rules::id, Rules::text}) : void()), ...);
  return result;
}
}  // namespace detail

/// Judges a configuration; fill `config::run` first if the run-time facts are known.
constexpr verdict check(config const& value) { return detail::judge(value, rule::catalogue{}); }

}  // namespace keel
