// Checks of a preflight: what the loss is at the start, and whether it takes what the model gives.
#pragma once

#include <keel/diagnose/preflight_passes.hpp>
#include <keel/diagnose/preflight_program.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Beside that of a guess: the logarithm of the number of classes, ln 2, or the targets' own variance.
void check_first_loss(tried_passes const& passes, preflight_table& table);
/// A softmax before a loss that has one, probabilities in place of their logarithms, a ReLU before logits.
void check_loss_and_output(tried_passes const& passes, preflight_table& table);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/preflight_loss.ipp>
#endif
