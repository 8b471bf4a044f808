// Checkpoints in a directory, each a directory `step-000000500`, or `step-000000500-requested` where a scheduled one of that
// update is there already:
//     model.safetensors      parameters and buffers
//     optimizer.safetensors  moments, by parameter name
//     state.safetensors      random state and what else is a tensor
//     state.json             recipe, counters, schedule, scaler, data cursor, optimizer options
//     manifest.json          lengths and checksums of all other files and of their tensors, and who wrote them
// Where several ranks write side by side, each but rank 0 adds two of its files (keel/checkpoint/rank_files.hpp).
// A save writes into a temporary directory, syncs every file and the directory, renames it, and syncs the parent; only
// then are older ones removed. So there are never fewer good checkpoints than before a save began, wherever it is killed.
// Only checkpoints whose manifest proves that they are of this run are removed, and of these the files above only: what else is in
// such a directory stays, as `kept-step-..`.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <keel/core/file_system.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

struct manifest;
struct snapshot;

/// Names a checkpoint. `requested` belongs to the name where a scheduled one of that update exists already: a requested one never
/// replaces it.
struct checkpoint_id {
  std::int64_t update = 0;  ///< updates applied
  bool requested = false;   ///< by a person, a signal or a file, and not by the cadence

  checkpoint_id() = default;
  /// Of this update, a requested one where `by_request` is true.
  checkpoint_id(std::int64_t number, bool by_request = false) : update(number), requested(by_request) {}
  friend bool operator==(checkpoint_id const&, checkpoint_id const&) = default;
  friend auto operator<=>(checkpoint_id const&, checkpoint_id const&) = default;
};

/// Which finished checkpoints stay once a new one is durable: the new one itself, of the scheduled ones those that are counted
/// here, and every one that a checkpoint which stays names as the best.
struct retention {
  std::int64_t newest = 2;              ///< so many of the newest
  std::int64_t every = 0;               ///< also those of updates that are a multiple of it; 0: none
  std::vector<std::int64_t> best = {};  ///< also these
  /// Also the newest that is so many updates older than the new one, for a rollback, and the next, which takes its place; 0: neither.
  std::int64_t rollback_distance = 0;
  /// The new one was requested, and gives way to the next that is. Three preemptions in a row then take nothing away that a
  /// rollback may need.
  bool requested = false;
  /// It may take the place of a scheduled one of the same update, as a save by the cadence and one after a rollback do.
  bool replaces = true;
};

/// What a save came to.
struct saved_checkpoint {
  std::filesystem::path path;   ///< the checkpoint's directory
  std::uint64_t bytes = 0;      ///< of all its files
  std::string removal_failure;  ///< why an older one could not be removed; empty: all is as it should be
  std::string sync_failure;     ///< why a power cut may lose it; empty: it is durable
};

/// A checkpoint that is being written.
struct pending_checkpoint {
  checkpoint_id id;                   ///< the checkpoint
  std::filesystem::path directory;    ///< until it is sealed
  std::shared_ptr<manifest> written;  ///< what is in it so far
};

/// The checkpoints of one directory. One thread uses it.
class checkpoint_store {
 public:
  using path = std::filesystem::path;  ///< of files and directories

  /// `directory` need not exist before prepare(); `files` outlives this.
  explicit checkpoint_store(path directory, file_system& files = real_files())
      : directory_(std::move(directory)), files_(files) {}

  /// Makes the directory and removes what a killed save left behind. Returns why a power cut may lose the directory itself;
  /// empty: it is durable.
  std::string prepare();

  /// Returns when the checkpoint is durable. Throws file_error (E02), nonfinite_error (N13), data_error (E05) for a tensor that
  /// cannot be saved; older checkpoints are then untouched.
  saved_checkpoint save(std::int64_t update, snapshot const& content, retention const& keep);
  // The same in steps, between which other ranks write their files into the directory. Each step throws what save() does, and nothing of
  // the checkpoint stays then.
  /// `mark`: a name that no other save has, for a directory that other ranks write into.
  pending_checkpoint open(std::int64_t update, std::string const& run, retention const& keep, std::string const& mark = {});
  /// Writes this process's files.
  void write(pending_checkpoint const& opened, snapshot const& content);
  /// Ranks 1 to `ranks` - 1 have left there that they can write; what they left goes.
  bool is_visible_to_ranks(pending_checkpoint const& opened, int ranks);
  /// With the files of ranks 1 to `ranks` - 1, for which it waits; file_error (E02) for one that does not show for `patience()` that it is
  /// there, from when those before it have written theirs.
  void add_rank_files(pending_checkpoint const& opened, int ranks, std::function<std::chrono::milliseconds()> const& patience);
  /// Writes the manifest, and makes it a checkpoint: returns when it is durable.
  saved_checkpoint commit_checkpoint(pending_checkpoint const& opened, retention const& keep);
  /// It does not become a checkpoint.
  void discard(pending_checkpoint const& opened) { clean_up_quietly(opened.directory, name_of(opened.id)); }

  /// All finished checkpoints, by update, a requested one after the scheduled one that it stands beside.
  std::vector<checkpoint_id> all();
  /// The updates that there is a finished checkpoint of, oldest first.
  std::vector<std::int64_t> updates();

  /// True if there is a finished checkpoint of this name.
  bool exists(checkpoint_id const& id) { return files_.exists(path_of(id)); }
  /// It was requested and not scheduled; what cannot be read counts as such.
  bool is_requested(checkpoint_id const& id);

  /// Of the scheduled checkpoint of an update, or of the requested one where that is the only one.
  path path_of_update(std::int64_t update) { return path_of({update, !exists(update)}); }
  /// Of a checkpoint, whether it exists or not.
  path path_of(checkpoint_id const& id) const { return directory_ / name_of(id); }

  /// Newest first: a run that rolled back saves lower updates after higher ones. What cannot be read comes first, so that it is
  /// noticed.
  std::vector<checkpoint_id> newest_first();

  /// A damaged one is not a checkpoint any longer, and stays for whoever looks into it.
  void set_aside(checkpoint_id const& id) { move_aside("damaged-", id); }
  /// After a restart from an older checkpoint: keeps this one on the disk under another name.
  void rename_abandoned(checkpoint_id const& id);

  /// Removes what a run that rolled back to `newest` had abandoned, where a kill came in between.
  void remove_abandoned(checkpoint_id const& newest);

  /// Reads and verifies one checkpoint (keel/checkpoint/snapshot.hpp). Throws checkpoint_error (E05) if anything in it differs from what was written.
  snapshot load(checkpoint_id const& id);

 private:
  /// Nothing if it is damaged, or another one that was given this name.
  std::optional<manifest> look_at(checkpoint_id const& id);
  /// The same of one that a removal looks at: what another version wrote is none of this run's.
  std::optional<manifest> look_at_own(checkpoint_id const& id);
  /// Checkpoints that an older version wrote do not say whose they are.
  static bool is_of_one_run(std::string const& a, std::string const& b) { return a.empty() || b.empty() || a == b; }
  /// A higher update that the run reached before it rolled back to what led to `newest`.
  static bool is_abandoned(checkpoint_id const& id, manifest const& of_id, checkpoint_id const& newest,
                           manifest const& of_newest);

  static constexpr std::string_view temporary_prefix = ".writing-";
  static constexpr std::string_view replaced_prefix = ".writing-replaced-";
  static constexpr std::string_view removed_prefix = ".writing-removed-";
  static constexpr std::string_view requested_suffix = "-requested";

  static std::string name_of(checkpoint_id const& id);
  static std::optional<checkpoint_id> id_of(std::string const& name);
  /// The name of the checkpoint that a directory with one of the prefixes is of; empty: it has none of them.
  static std::string name_in(std::string const& directory);

  /// Returns why something stays that should go; empty: nothing does.
  std::string remove_old(checkpoint_id const& newest, retention const& keep);

  /// First under another name, so that a kill while its files go away leaves no half of a checkpoint.
  std::string remove(std::vector<checkpoint_id> const& leave);

  /// Removes a checkpoint's own files and its directory. What else is in it stays, under a name that says so; returns a
  /// sentence about that.
  std::string remove_files_of(path const& directory, std::string const& name);

  path free_name(std::string const& name);
  void move_aside(char const* prefix, checkpoint_id const& id) { files_.rename(path_of(id), free_name(prefix + name_of(id))); }

  /// A checkpoint that stepped aside for one that never came takes its place again.
  void put_back();

  void clean_up_quietly(path const& directory, std::string const& name);
  template <class Step>
  auto discard_on_failure(pending_checkpoint const& opened, Step const& step);

  path directory_;
  file_system& files_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/checkpoint/store.ipp>
#endif
