// Checks of a preflight: whether the inputs reveal the targets, and whether masks work.
#pragma once

#include <keel/diagnose/preflight_passes.hpp>
#include <keel/diagnose/preflight_program.hpp>

namespace keel::detail::inline KEEL_MODE {

/// For sequences whose targets are later inputs: the output at t must not depend on its target or later inputs. Also checks the shift of
/// the targets.
void check_look_ahead(tried_passes const& passes, preflight_table& table);
/// For all other batches: no input column reveals the target.
void check_targets_in_inputs(tried_passes const& passes, preflight_table& table);
void check_masks(tried_passes const& passes, preflight_table& table);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/preflight_sequence.ipp>
#endif
