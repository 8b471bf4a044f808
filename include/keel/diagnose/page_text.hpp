// Text and numbers as a page shows them.
#pragma once

#include <keel/libtorch/mode.hpp>
#include <string>
#include <string_view>

namespace keel::inline KEEL_MODE {

/// Text as HTML and SVG take it, in elements and in attributes.
std::string escaped(std::string_view text);

/// Short enough for an axis: 1500, 15k, 2.5M, 1.04e-3.
std::string short_number(double value);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/page_text.ipp>
#endif
