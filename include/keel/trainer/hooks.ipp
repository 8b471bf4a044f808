// Definitions for hooks.hpp.
#pragma once

#include <keel/trainer/hooks.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY hooks::hooks() = default;
KEEL_BODY hooks::~hooks() = default;

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
