// Rejects a call: the rule is reported at the call, and nowhere else.
#pragma once

#include <keel/rule/catalogue.hpp>

namespace keel::detail {

/// Appears in the compiler's notes with the types of the call's arguments.
template <class... Arguments>
struct call_with;

/// Depends on the caller's arguments, so that the rule is reported only if there is a call.
template <class Rule, class... Arguments>
constexpr void reject_call() {
  [[maybe_unused]]
  typename Rule::template demand<sizeof...(Arguments) == static_cast<decltype(sizeof(int))>(-1), call_with<Arguments...>> said;
}

/// Supplies a value in a rejected function; never called by code that compiles.
template <class Value>
Value const& no_value();

}  // namespace keel::detail
