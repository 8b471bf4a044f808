// User functions that are called on events. A hook must be callable with at least one event; any other signature is a compile error (U17),
// so that no hook is silently ignored.
#pragma once

#include <boost/hana/any_of.hpp>
#include <boost/hana/bool.hpp>
#include <boost/hana/for_each.hpp>
#include <boost/hana/unpack.hpp>
#include <concepts>
#include <functional>
#include <keel/rule/not_implemented.hpp>
#include <keel/trainer/run_events.hpp>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

class hooks {
  // One list of functions per event type.
  using lists = decltype(boost::hana::unpack(event::all, [](auto... type) {
    return std::tuple<std::vector<std::function<void(typename decltype(type)::type const&)>>...>{};
  }));

  template <class Hook>
  static constexpr bool takes_any() {
    return decltype(boost::hana::any_of(event::all, [](auto type) {
      return boost::hana::bool_c<std::invocable<Hook&, typename decltype(type)::type const&>>;
    }))::value;
  }

 public:
  hooks();
  hooks(hooks const&) = delete;
  hooks& operator=(hooks const&) = delete;
  ~hooks();

  /// Adds a hook to every event that it can be called with; `[](auto const& e)` is called for all of them.
  template <class Hook>
  void add(Hook hook) {
    if constexpr (!takes_any<Hook>()) {
      [[maybe_unused]] rule::U17::demand<false, Hook> check;
    } else {
      // All events share one hook object, so that it may count on one event and report on another.
      auto const shared = std::make_shared<Hook>(std::move(hook));
      boost::hana::for_each(event::all, [&](auto type) {
        using Event = typename decltype(type)::type;
        if constexpr (std::invocable<Hook&, Event const&>) {
          list_of<Event>().push_back([shared](Event const& event) { std::invoke(*shared, event); });
        }
      });
    }
  }

  /// True if a hook is called with this event.
  template <class Event>
  bool has_hook_for() const {
    return !std::get<std::vector<std::function<void(Event const&)>>>(lists_).empty();
  }

  template <class Event>
  void operator()(Event const& event) {
    // By index and by copy, because a hook may add hooks.
    for (std::size_t i = 0; i < list_of<Event>().size(); ++i) {
      auto const hook = list_of<Event>()[i];
      hook(event);
    }
  }

 private:
  template <class Event>
  auto& list_of() {
    return std::get<std::vector<std::function<void(Event const&)>>>(lists_);
  }

  lists lists_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/hooks.ipp>
#endif
