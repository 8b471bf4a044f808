// Checks of a preflight: whether the targets can be seen in what goes in, and whether masks do what they say.
#pragma once

#include <keel/diagnose/preflight_passes.hpp>
#include <keel/diagnose/preflight_program.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Of sequences whose targets are inputs some places later: the output at t must not change with the inputs after it. Also says whether the
/// targets are shifted as they should be.
void check_look_ahead(tried_passes const& passes, preflight_table& table);
/// Of all others: no column of the inputs says what the target is.
void check_targets_in_inputs(tried_passes const& passes, preflight_table& table);
void check_masks(tried_passes const& passes, preflight_table& table);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/preflight_sequence.ipp>
#endif
