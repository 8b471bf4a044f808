#pragma once

#include <keel/libtorch/mode.hpp>

namespace keel::inline KEEL_MODE {

/// The version of keel, which is written into every checkpoint.
inline constexpr char const* version = "0.1.0";

}  // namespace keel::inline KEEL_MODE
