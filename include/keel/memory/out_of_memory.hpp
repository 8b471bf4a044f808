// Tells an out-of-memory from every other error. On a GPU it is a type of its own; on the CPU LibTorch throws a plain
// c10::Error, which only its words tell apart. A retry after any other CUDA error would run on a corrupt context (O12).
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string>
#include <string_view>

namespace keel {

inline bool is_out_of_memory(std::exception const& thrown) {
  if (dynamic_cast<c10::OutOfMemoryError const*>(&thrown) != nullptr) return true;
  if (dynamic_cast<std::bad_alloc const*>(&thrown) != nullptr) return true;
  auto const* const from_torch = dynamic_cast<c10::Error const*>(&thrown);
  if (from_torch == nullptr) return false;
  std::string_view const words = from_torch->what_without_backtrace();
  return words.find("DefaultCPUAllocator: can't allocate memory") != std::string_view::npos ||
         words.find("DefaultCPUAllocator: not enough memory") != std::string_view::npos;
}

/// The first line of an exception's message, without LibTorch's backtrace.
inline std::string first_line(std::exception const& thrown) {
  std::string_view const words = thrown.what();
  return std::string(words.substr(0, words.find('\n')));
}

}  // namespace keel
