// Checks of a preflight: whether model, optimizer, loss and batches are connected correctly.
#pragma once

#include <keel/diagnose/preflight_passes.hpp>
#include <keel/diagnose/preflight_program.hpp>

namespace keel::detail::inline KEEL_MODE {

void check_modes(preflight_program& program, preflight_table& table);
/// Makes updates on several batches and finds parameters that get no gradient.
void check_gradients(preflight_program& program, preflight_table& table);
/// Finds tensors that require grad and affect the loss, but are not registered in the model.
void check_other_leaves(preflight_program& program, preflight_table& table);
void check_batches(preflight_program& program, preflight_table& table);
void check_inputs_and_labels(tried_passes const& passes, preflight_table& table);
void check_rows(tried_passes const& passes, preflight_table& table);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/preflight_wiring.ipp>
#endif
