// Definitions for out_of_memory.hpp.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <exception>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <new>
#include <string>
#include <string_view>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY bool is_out_of_memory(std::exception const& thrown) {
  if (dynamic_cast<c10::OutOfMemoryError const*>(&thrown) != nullptr) return true;
  if (dynamic_cast<std::bad_alloc const*>(&thrown) != nullptr) return true;
  auto const* const from_torch = dynamic_cast<c10::Error const*>(&thrown);
  if (from_torch == nullptr) return false;
  std::string_view const words = from_torch->what_without_backtrace();
  return words.find("DefaultCPUAllocator: can't allocate memory") != std::string_view::npos ||
         words.find("DefaultCPUAllocator: not enough memory") != std::string_view::npos;
}

KEEL_BODY std::string first_line(std::exception const& thrown) {
  std::string_view const words = thrown.what();
  return std::string(words.substr(0, words.find('\n')));
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void rethrow_named(std::exception const& thrown, std::int64_t updates, char const* where, char const* way_out) {
  if (!is_out_of_memory(thrown)) throw;
  throw out_of_memory_error(
      "E09", "memory ran out in update " + std::to_string(updates + 1) + where + ": " + first_line(thrown) + ". " + way_out);
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
