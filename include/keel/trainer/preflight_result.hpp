// What trainer::preflight takes and says: a minute before a week, what would waste the run.
//     keel::preflight_result const found = run.preflight(batches, loss_of);
//     std::fputs(found.table().c_str(), stdout);
//     if (!found.passed()) return 1;
#pragma once

#include <cstddef>
#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// How long a preflight looks.
struct preflight_options {
  /// Batches that are taken from the first epoch and kept in memory while the checks run.
  std::size_t batches = 64;
  /// Updates of each experiment that trains; fewer where updates are slow.
  std::int64_t updates = 150;
  /// Seconds that all checks together aim at.
  double seconds = 60.0;
  /// fp32 numbers that the optimizer keeps of each trained parameter, for the memory; below 0: counted after the first update.
  int state_per_parameter = -1;
};

/// What a check came to.
enum class preflight_verdict : unsigned char { passed, failed, not_applicable };
/// "passed", "failed" or "not applicable".
char const* to_string(preflight_verdict which);

/// What one check found.
struct preflight_row {
  std::string check;          ///< "overfit one batch"
  preflight_verdict verdict;  ///< of the check
  std::string words;          ///< what was seen, or why it was not looked at
  std::string fix;            ///< what to do; empty unless it failed
};

/// What a preflight found.
struct preflight_result {
  std::vector<preflight_row> rows;  ///< a check each
  std::vector<std::string> advice;  ///< ranges that work, where the run is outside of them; no failures
  double seconds = 0.0;             ///< that it took

  /// No check failed.
  bool passed() const;
  /// The row of a check by its name, or null.
  preflight_row const* find(std::string const& check) const;
  /// For a terminal.
  std::string table() const;
};

class registered_states;
struct trainer_options;

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

class evaluator;
class step_engine;

/// What a trainer hands to its preflight. All of it outlives the call.
template <class Recipe, class Environment>
struct preflight_subject {
  using recipe = Recipe;
  using environment = Environment;
  step_engine& step;
  registered_states& registered;
  evaluator const& evaluations;
  trainer_options const& options;
  std::int64_t length;  ///< updates of the run; 0: not known
};

/// The checks, which keel/diagnose/preflight.hpp has on a higher floor.
template <class Subject, class Batches, class LossOf>
preflight_result run_preflight_if_included(Subject const& subject, Batches& batches, LossOf& loss_of,
                                           preflight_options const& options) {
  constexpr bool is_included = requires { preflight_of(subject, batches, loss_of, options); };
  static_assert(
      is_included,
      "the checks of a preflight stand in a header that is not included. Fix: #include <keel/diagnose/preflight.hpp>.");
  if constexpr (is_included) return preflight_of(subject, batches, loss_of, options);
  return {};
}

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/preflight_result.ipp>
#endif
