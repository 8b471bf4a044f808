// The newest checkpoint of a run that is whole: what is damaged is passed over, said, and set aside.
#pragma once

#include <keel/checkpoint/snapshot.hpp>
#include <keel/checkpoint/store.hpp>
#include <keel/core/error.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Calls `apply(content, source)` with the newest checkpoint that is whole, and `on_damaged(update, words)` for each damaged
/// one before it; false if there are none at all. A checkpoint of another recipe or model is not passed over: the directory
/// belongs to another run. Throws checkpoint_error (E05) if there are checkpoints and none is whole.
template <class Store, class Apply, class OnDamaged>
bool load_newest_valid(Store& store, Apply&& apply, OnDamaged&& on_damaged) {
  auto const found = store.newest_first();
  std::string damage;
  std::vector<checkpoint_id> damaged;
  for (checkpoint_id const& id : found) {
    std::string const source = store.path_of(id).string();
    try {
      apply(store.load(id), source);
      store.remove_abandoned(id);
      // Where none is whole, all stay where they were.
      for (checkpoint_id const& one : damaged) store.set_aside(one);
      return true;
    } catch (nlohmann::json::exception const& thrown) {
      // Its checksum was right: something else than a run of keel's wrote it.
      throw checkpoint_error("E04", source + " does not hold what a run needs (" + thrown.what() +
                                        "). Use another run directory, or carry it over with trainer::migrate.");
    } catch (error const& thrown) {
      // A file that cannot be read now may be whole: passing it over would end in its removal.
      if (thrown.id() != "E05") throw;
      damage = thrown.what();
    }
    damaged.push_back(id);
    on_damaged(id.update, damage);
  }
  if (damage.empty()) return false;
  throw checkpoint_error("E05", "none of the checkpoints is whole; the oldest, " + store.path_of(found.back()).string() +
                                    ", says: " + damage + " Restore the directory from a copy, or start again in another one.");
}

}  // namespace keel::inline KEEL_MODE
