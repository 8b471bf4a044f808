// Checks of a preflight that train: whether the model can learn one batch by heart, at what rates, and whether the labels say anything.
#pragma once

#include <cstdint>
#include <keel/diagnose/preflight_program.hpp>
#include <optional>

namespace keel::detail::inline KEEL_MODE {

/// What the training checks find out for each other.
struct preflight_training {
  std::int64_t updates = 0;              ///< of each experiment
  std::int64_t wanted = 0;               ///< updates that each should have
  bool is_slow = false;                  ///< so few updates take longer than there is time for
  bool has_labels = true;                ///< the last tensor of a batch does not go into the model
  std::optional<double> factor_of_rate;  ///< of the run's own rate, at which one batch was learned
};

void check_overfit(preflight_program& program, preflight_training& found, preflight_table& table);
void check_rate(preflight_program& program, preflight_training const& found, preflight_table& table);
/// Training with the program's labels beside training with those of other rows, judged on batches that neither has seen.
void check_labels_belong(preflight_program& program, preflight_training const& found, preflight_table& table);
/// Ranges that practice names, where the run is outside of them.
void advise(preflight_program& program, preflight_table& table);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/preflight_training.ipp>
#endif
