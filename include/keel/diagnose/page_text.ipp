// Definitions for page_text.hpp.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <keel/diagnose/page_text.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY std::string escaped(std::string_view text) {
  std::string safe;
  for (char const c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        // Control codes are invalid in HTML.
        safe += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? '?' : c;
    }
  }
  return safe;
}

KEEL_BODY std::string short_number(double value) {
  std::array<char, 32> text{};
  double const size = std::abs(value);
  if (size > 0 && size < 1e-2) {
    std::snprintf(text.data(), text.size(), "%.2e", value);
    // Shortens exponents: 1.04e-03, 1.00e-03.
    std::string const whole = text.data();
    std::size_t const e = whole.find('e');
    std::string mantissa = whole.substr(0, e);
    mantissa.erase(mantissa.find_last_not_of('0') + 1);
    if (mantissa.back() == '.') mantissa.pop_back();
    return mantissa + "e" + std::to_string(std::atoi(whole.c_str() + e + 1));
  } else if (size >= 1e15) {
    std::snprintf(text.data(), text.size(), "%.3g", value);
  } else if (size >= 1e9) {
    std::snprintf(text.data(), text.size(), "%.4gG", value / 1e9);
  } else if (size >= 1e6) {
    std::snprintf(text.data(), text.size(), "%.4gM", value / 1e6);
  } else if (size >= 1e4) {
    std::snprintf(text.data(), text.size(), "%.4gk", value / 1e3);
  } else {
    std::snprintf(text.data(), text.size(), "%.4g", value);
  }
  return text.data();
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
