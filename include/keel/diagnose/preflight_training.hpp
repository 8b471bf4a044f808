// Checks of a preflight that train: whether the model can overfit one batch, at which rates, and whether the labels fit the inputs.
#pragma once

#include <cstdint>
#include <keel/diagnose/preflight_program.hpp>
#include <optional>

namespace keel::detail::inline KEEL_MODE {

/// Results that the training checks share.
struct preflight_training {
  std::int64_t updates = 0;              ///< updates of each experiment
  std::int64_t wanted = 0;               ///< updates that each experiment should have
  bool is_slow = false;                  ///< even this number of updates takes longer than the time left
  bool has_labels = true;                ///< the last tensor of a batch is not a model input
  std::optional<double> factor_of_rate;  ///< factor on the run's learning rate at which one batch was overfitted
};

void check_overfit(preflight_program& program, preflight_training& found, preflight_table& table);
void check_rate(preflight_program& program, preflight_training const& found, preflight_table& table);
/// Compares training on the program's labels with training on permuted labels, evaluated on batches unseen by both.
void check_labels_belong(preflight_program& program, preflight_training const& found, preflight_table& table);
/// Adds advice for settings outside of the usual ranges.
void advise(preflight_program& program, preflight_table& table);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/preflight_training.ipp>
#endif
