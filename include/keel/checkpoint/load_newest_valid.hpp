// Loads the newest undamaged checkpoint of a run. Damaged ones are reported, skipped and renamed.
#pragma once

#include <keel/checkpoint/snapshot.hpp>
#include <keel/checkpoint/store.hpp>
#include <keel/core/error.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Calls `apply(content, source)` with the newest undamaged checkpoint, and `on_damaged(update, message)` for each damaged one
/// that is newer. Returns false if there are no checkpoints. Does not skip a checkpoint of another recipe or model, because the
/// directory then belongs to another run. Throws checkpoint_error (E05) if all checkpoints are damaged.
template <class Store, class Apply, class OnDamaged>
bool load_newest_valid(Store& store, Apply&& apply, OnDamaged&& on_damaged, checkpoint_store::reader const& read = {}) {
  auto const found = store.newest_first();
  std::string damage;
  std::vector<checkpoint_id> damaged;
  for (checkpoint_id const& id : found) {
    std::string const source = store.path_of(id).string();
    try {
      apply(store.load(id, read), source);
      store.remove_abandoned(id);
      // If all checkpoints are damaged, none is renamed.
      for (checkpoint_id const& one : damaged) store.set_aside(one);
      return true;
    } catch (nlohmann::json::exception const& thrown) {
      // The checksum matched, so something other than a keel run wrote it.
      throw checkpoint_error("E04", source + " does not contain the state of a run (" + thrown.what() +
                                        "). Use another run directory, or convert the checkpoint with trainer::migrate.");
    } catch (error const& thrown) {
      // The file may be intact although it cannot be read now. If it were skipped, it would eventually be removed.
      if (thrown.id() != "E05") throw;
      damage = thrown.what();
    }
    damaged.push_back(id);
    on_damaged(id.update, damage);
  }
  if (damage.empty()) return false;
  throw checkpoint_error("E05", "all checkpoints are damaged. The oldest, " + store.path_of(found.back()).string() +
                                    ", fails with: " + damage +
                                    " Restore the directory from a backup, or start again in another one.");
}

}  // namespace keel::inline KEEL_MODE
