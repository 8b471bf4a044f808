#pragma once

namespace keel {

/// Written into every checkpoint.
inline constexpr char const* version = "0.1.0";

}  // namespace keel
