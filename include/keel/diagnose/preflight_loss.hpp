// Checks of a preflight: the initial loss, and whether the loss function fits the model's output.
#pragma once

#include <keel/diagnose/preflight_passes.hpp>
#include <keel/diagnose/preflight_program.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Compares the initial loss with that of a constant guess: the logarithm of the number of classes, ln 2, or the variance of the targets.
void check_first_loss(tried_passes const& passes, preflight_table& table);
/// Finds a softmax before a loss that includes one, probabilities in place of log-probabilities, and a ReLU before logits.
void check_loss_and_output(tried_passes const& passes, preflight_table& table);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/preflight_loss.ipp>
#endif
