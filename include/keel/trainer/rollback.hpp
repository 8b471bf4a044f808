// Rollback: selects the checkpoint to return to, and enforces the limit.
#pragma once

#include <cstdint>
#include <keel/checkpoint/snapshot.hpp>
#include <keel/checkpoint/store.hpp>
#include <keel/config/config.hpp>
#include <keel/core/error.hpp>
#include <keel/policy/nonfinite.hpp>
#include <keel/rule/rule.hpp>
#include <keel/step/update_guards.hpp>
#include <keel/trainer/rollback_history.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

inline char const* to_string(nonfinite::change change) {
  switch (change) {
    case nonfinite::change::nothing:
      return "nothing changed";
    case nonfinite::change::skip_data:
      return "data skipped";
    case nonfinite::change::lower_lr:
      return "learning rate halved";
    case nonfinite::change::reseed:
      return "reseeded";
  }
  return "unknown";
}

/// How a recipe responds to a rollback request.
struct rollback_plan {
  nonfinite::change change;
  std::int64_t attempts;       ///< maximum number of rollbacks in one run
  std::int64_t max_fault_age;  ///< in updates
};

constexpr rollback_plan plan_rollback(config const& recipe, bool spike) {
  if (spike) return {nonfinite::change::skip_data, recipe.spike.attempts, rule::sum(recipe.spike.window, recipe.spike.limit)};
  return {recipe.nonfinite.change, recipe.nonfinite.attempts, recipe.nonfinite.limit};
}

/// Maximum age, in updates, of a fault for which this recipe rolls back; 0: it does not roll back.
constexpr std::int64_t rollback_distance(config const& recipe) {
  std::int64_t const nonfinite =
      recipe.nonfinite.kind == nonfinite::kind::rollback ? plan_rollback(recipe, false).max_fault_age : 0;
  std::int64_t const spike = recipe.spike.kind == spike::kind::rollback ? plan_rollback(recipe, true).max_fault_age : 0;
  return nonfinite > spike ? nonfinite : spike;
}

/// Ends a run that cannot roll back again: throws nonfinite_error (E08) or diverged_error (E14), whose message lists the earlier rollbacks.
[[noreturn]] inline void throw_rollback_limit(rollback_request const& request, rollback_history const& history,
                                              std::string const& why) {
  std::string tried;
  for (std::size_t i = 0; i < history.to.size(); ++i)
    tried += (i == 0 ? " Earlier rollbacks: from update " : ", from ") + std::to_string(history.from[i]) + " to " +
             std::to_string(history.to[i]);
  std::string const sentence =
      request.why + ", and " + why + "." + tried + (tried.empty() ? "" : ".") +
      " Inspect the data from this update on, lower the learning rate, or move the newer checkpoints out "
      "of checkpoints/ to resume from an older one.";
  if (request.spike) throw diverged_error("E14", sentence, request.last_skip_reason);
  throw nonfinite_error("E08", sentence, request.last_skip_reason);
}

/// Returns the newest valid scheduled checkpoint whose parameters were produced by attempt `attempts` or an earlier one. Prefers one saved
/// before update `before`. Passes damaged checkpoints to `on_damaged` and skips them. Returns nullopt if every checkpoint is too recent.
/// Reads the tensors of those that it may return only; the one that it returns is the last of them.
template <class Store, class OnDamaged>
std::optional<std::pair<checkpoint_id, snapshot>> find_checkpoint_before(Store& store, std::int64_t attempts,
                                                                         std::optional<std::int64_t> before,
                                                                         OnDamaged const& on_damaged,
                                                                         checkpoint_store::reader const& read = {}) {
  auto const skip_if_damaged = [&](checkpoint_id const& id, auto const& act) {
    try {
      act();
    } catch (checkpoint_error const& thrown) {
      if (thrown.id() != "E05") throw;
      on_damaged(id.update, std::string(thrown.what()));
    }
  };
  std::optional<std::pair<checkpoint_id, snapshot>> found;
  auto const load = [&](checkpoint_id const& id) { skip_if_damaged(id, [&] { found.emplace(id, store.load(id, read)); }); };
  std::vector<checkpoint_id> others;
  for (checkpoint_id const& id : store.newest_first()) {
    if (found) break;
    skip_if_damaged(id, [&] {
      nlohmann::json const state = store.load_state(id);
      auto const age = state.value(nlohmann::json::json_pointer("/run/record/age"), std::int64_t{0});
      if (store.is_requested(id) || age > attempts) return;
      if (before && id.update >= *before) return others.push_back(id);
      load(id);
    });
  }
  for (checkpoint_id const& id : others) {
    if (!found) load(id);
  }
  return found;
}

}  // namespace keel::inline KEEL_MODE
