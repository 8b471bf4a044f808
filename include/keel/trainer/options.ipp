// Definitions for options.hpp.
#pragma once

#include <cmath>
#include <keel/trainer/options.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY std::int64_t length_of(trainer_options const& options, std::int64_t accumulate) {
  if (options.updates > 0 || options.epochs < 1 || options.batches_per_epoch < 1) return options.updates;
  std::int64_t batches = 0;
  if (__builtin_mul_overflow(options.epochs, options.batches_per_epoch, &batches))
    throw error("E12", "options.epochs times options.batches_per_epoch exceeds 2^63. Reduce one of them.");
  return batches / accumulate + (batches % accumulate > 0 ? 1 : 0);
}

KEEL_BODY std::int64_t length_at_construction(trainer_options const& options, config const& recipe, bool is_single_rank) {
  bool const is_open = is_single_rank && options.updates == 0 && options.epochs > 0 && options.batches_per_epoch == 0 &&
                       schedule::depends_on_length(recipe.schedule) && recipe.schedule.total == 0;
  return is_open ? run_facts::length_of_batches : length_of(options, recipe.accumulate.count);
}

KEEL_BODY void require_sound(trainer_options const& options, bool saves) {
  if (options.updates < 0 || options.epochs < 0 || options.batches_per_epoch < 0) {
    throw error("E12",
                "options.updates, options.epochs and options.batches_per_epoch must not be negative. Leave them at 0 for one "
                "pass over the data.");
  }
  if (options.record_every < 1) {
    throw error("E12", "options.record_every is " + std::to_string(options.record_every) +
                           ", but must be at least 1. Leave it at 1 to record every update.");
  }
  if (options.layers_every < 0 || options.histograms_every < 0) {
    throw error("E12",
                "options.layers_every and options.histograms_every are intervals in updates and must not be negative. Leave "
                "them at 0 to record no layer statistics.");
  }
  for (double const rate : {options.operations_per_token, options.peak_operations_per_second}) {
    if (rate >= 0.0 && std::isfinite(rate)) continue;
    throw error("E12",
                "options.operations_per_token and options.peak_operations_per_second must be finite and not negative. Leave "
                "them at 0 if they are not known.");
  }
  if (!options.resume_from.empty() && (!saves || !options.resume || options.resume_at || !options.weights_from.empty())) {
    throw error("E12",
                "options.resume_from requires a recipe with checkpoints and options.resume, and excludes resume_at and "
                "weights_from. Correct these options, or remove resume_from.");
  }
  if (options.resume_at && (!saves || !options.resume || *options.resume_at < 0 || !options.weights_from.empty())) {
    throw error("E12",
                "options.resume_at requires a recipe with checkpoints, options.resume and an update of 0 or more, and excludes "
                "weights_from. Correct these options, or remove resume_at.");
  }
  if (saves && options.run_directory.empty()) {
    throw error("E12",
                "the recipe saves checkpoints but options.run_directory is empty. Name a directory, or use "
                "keel::checkpoint::never.");
  }
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY trainer_options adapt_options_to_rank(trainer_options options, int rank) {
  if (rank == 0) return options;
  if (!options.run_directory.empty()) options.run_directory /= "rank-" + std::to_string(rank);
  options.console = nullptr;
  options.tensorboard = false;
  options.sinks.clear();
  return options;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY void require_work_left(std::int64_t updates, std::int64_t length) {
  if (updates <= length) return;
  throw broken_rule<error, rule::S19>("checkpoint at update " + std::to_string(updates) + ", options.updates " +
                                      std::to_string(length));
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
