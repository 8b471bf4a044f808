// Formats text and numbers for a page.
#pragma once

#include <keel/libtorch/mode.hpp>
#include <string>
#include <string_view>

namespace keel::inline KEEL_MODE {

/// Escapes text for HTML and SVG, in elements and in attributes.
std::string escaped(std::string_view text);

/// Formats a number for an axis: 1500, 15k, 2.5M, 1.04e-3.
std::string short_number(double value);

/// Joins texts with semicolons, without null pointers.
template <class Texts>
std::string joined(Texts const& texts) {
  std::string all;
  for (char const* const text : texts) {
    if (text != nullptr) all += (all.empty() ? "" : "; ") + std::string(text);
  }
  return all;
}

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/page_text.ipp>
#endif
