// How a call is rejected: the rule is reported where the call stands, and nowhere else.
#pragma once

#include <keel/rule/catalogue.hpp>

namespace keel::detail {

/// Names the call in the compiler's notes.
template <class... Arguments>
struct call_with;

/// Depends on the caller's arguments, so that the rule only speaks where a call is.
template <class Rule, class... Arguments>
constexpr void reject_call() {
  [[maybe_unused]]
  typename Rule::template demand<sizeof...(Arguments) == static_cast<decltype(sizeof(int))>(-1), call_with<Arguments...>> said;
}

/// Stands where a rejected function would need a value; nothing that compiles calls it.
template <class Value>
Value const& no_value();

}  // namespace keel::detail
