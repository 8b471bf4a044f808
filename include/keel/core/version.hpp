#pragma once

#include <keel/libtorch/mode.hpp>

namespace keel::inline KEEL_MODE {

/// Written into every checkpoint.
inline constexpr char const* version = "0.1.0";

}  // namespace keel::inline KEEL_MODE
