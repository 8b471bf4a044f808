// What one rank says, on all of them.
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

/// All ranks call it: the text that rank `from` gives. Throws world_error (E25).
std::string broadcast_string(world_of_ranks const& world, std::string const& local, int from);

/// All ranks call it: what one of them failed by, with the rank; empty where none did.
std::string first_failure_message(world_of_ranks const& world, std::string const& local);

/// What `make` returns. All ranks call it: where it throws on one, the others throw world_error (E25) with its words.
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
      // Rethrown below, once the others, who wait for this rank, know of it.
      thrown = std::current_exception();
    }
    if (thrown && message.empty()) message = "an exception without words";
    std::string failed;
    try {
      if (world.size() > 1) failed = first_failure_message(world, message);
    } catch (world_error const&) {
      // Another rank is gone: what failed here says more.
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
