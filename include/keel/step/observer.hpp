// Who listens to a step: a trainer, a dry run, or nothing.
#pragma once

#include <concepts>
#include <keel/metrics/layer_record.hpp>
#include <keel/recipe/admitted.hpp>
#include <type_traits>

namespace keel::detail::inline KEEL_MODE {

struct no_observer {
  template <class Event>
  void operator()(Event const& /*event*/) const {}
};

/// Of a dry run, which looks at outcomes alone.
struct dry_run_observer {
  template <class Event>
  void operator()(Event const& /*event*/) const {}
  static bool reads_losses() { return false; }
  static bool reads_gradients() { return false; }
  static bool watches_memory() { return false; }
  static constexpr bool looks_into_incidents = false;
};

/// By which rules a step with this observer is judged: those of a bare step, of a trainer, or what the observer says.
template <class Observer>
struct door_chosen {
  using type = std::conditional_t<std::same_as<Observer, no_observer>, at_step, at_trainer>;
};
template <class Observer>
  requires requires { typename Observer::door; }
struct door_chosen<Observer> {
  using type = typename Observer::door;
};
template <class Observer>
using door_of = typename door_chosen<Observer>::type;

/// The recipe as the rules judge it: with what the observer's run adds.
template <class Observer>
config judged_value(Observer const& observer, config const& value) {
  if constexpr (requires { observer.judged(value); }) {
    return observer.judged(value);
  } else {
    return value;
  }
}

/// It looks at the loss of each micro-batch, or at the gradients of each update, so the host has to read them at once. An
/// observer that does not say counts as one that does.
template <class Observer>
bool reads_losses(Observer const& observer) {
  if constexpr (requires { observer.reads_losses(); }) {
    return observer.reads_losses();
  } else {
    return !std::same_as<Observer, no_observer>;
  }
}
template <class Observer>
bool reads_gradients(Observer const& observer) {
  if constexpr (requires { observer.reads_gradients(); }) {
    return observer.reads_gradients();
  } else {
    return !std::same_as<Observer, no_observer>;
  }
}

/// An update that is not finite is looked into; so it is for an observer that does not say.
template <class Observer>
constexpr bool looks_into_incidents() {
  if constexpr (requires { Observer::looks_into_incidents; }) {
    return Observer::looks_into_incidents;
  } else {
    return true;
  }
}

/// How much of the layers it wants to know of the update that begins.
template <class Observer>
layer_detail watches_layers(Observer const& observer) {
  if constexpr (requires { observer.watches_layers(); }) {
    return observer.watches_layers();
  } else {
    return layer_detail::none;
  }
}

/// It wants to know what each update took of memory.
template <class Observer>
bool watches_memory(Observer const& observer) {
  if constexpr (requires { observer.watches_memory(); }) {
    return observer.watches_memory();
  } else {
    return !std::same_as<Observer, no_observer>;
  }
}

}  // namespace keel::detail::inline KEEL_MODE
