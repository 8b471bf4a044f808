// Definitions for console_log.hpp.
#pragma once

#include <array>
#include <chrono>
#include <ctime>
#include <keel/metrics/console_log.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY std::string console_log::dated(std::string_view line) {
  std::time_t const now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  std::array<char, 32> text{};
  if (::gmtime_r(&now, &parts) == nullptr || std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S ", &parts) == 0)
    return std::string(line);
  return text.data() + std::string(line);
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
