// Collectives that exchange strings: broadcast, and propagation of a failure from one rank to all.
#pragma once

#include <concepts>
#include <exception>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

/// Broadcasts the string of rank `from`. Collective: all ranks must call it. Throws world_error (E25).
std::string broadcast_string(world_of_ranks const& world, std::string const& local, int from);

/// Returns the message of the highest rank whose `local` is not empty, prefixed with the rank; empty if no rank failed. Collective: all
/// ranks must call it.
std::string exchange_failure_message(world_of_ranks const& world, std::string const& local);

/// Returns the result of `make`. If it throws on one rank, the others throw world_error (E25) with its message. Collective: all ranks must
/// call it.
template <class World, class Make>
auto on_all_ranks(World const& world, Make const& make) {
  if constexpr (std::same_as<World, world_of_ranks>) {
    std::optional<std::invoke_result_t<Make const&>> made;
    std::exception_ptr thrown;
    std::string message;
    try {
      made.emplace(make());
    } catch (std::exception const& one) {
      thrown = std::current_exception();
      message = first_line(one);
    } catch (...) {
      // Rethrown below, after the waiting ranks have received the message.
      thrown = std::current_exception();
    }
    if (thrown && message.empty()) message = "an exception that is not a std::exception";
    std::string failed;
    try {
      if (world.size() > 1) failed = exchange_failure_message(world, message);
    } catch (world_error const&) {
      // Another rank exited. The local exception is more informative.
      if (!thrown) throw;
    }
    if (thrown) std::rethrow_exception(thrown);
    if (!failed.empty()) throw world_error("E25", failed);
    return *std::move(made);
  } else {
    return make();
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/collective/broadcast_string.ipp>
#endif
