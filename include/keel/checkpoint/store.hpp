// Stores checkpoints in a directory. Each is a directory `step-000000500`, or `step-000000500-requested` if a scheduled one of
// that update exists:
//     model.safetensors      parameters and buffers
//     optimizer.safetensors  moments, by parameter name
//     state.safetensors      random state and other tensors
//     state.json             recipe, counters, schedule, scaler, data cursor, optimizer options
//     manifest.json          sizes and checksums of all other files and their tensors, and the versions that wrote them
// With several ranks, each but rank 0 adds two or three files (keel/checkpoint/rank_files.hpp). Tensors that are divided among ranks are in
// slices there, which readers join (keel/checkpoint/tensor_slice.hpp).
// A save writes to a temporary directory, syncs every file and the directory, renames it, and syncs the parent. Only then are
// older checkpoints removed, so a kill at any time leaves at least as many good checkpoints as before. Only checkpoints whose
// manifest identifies this run are removed, and only the files above. Any other file in such a directory is kept, in
// `kept-step-..`.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <keel/core/file_system.hpp>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

struct manifest;
struct snapshot;

/// Identifies a checkpoint. `requested` is part of the name if a scheduled checkpoint of that update exists: a requested one
/// never replaces it.
struct checkpoint_id {
  std::int64_t update = 0;  ///< applied updates
  bool requested = false;   ///< saved on request (user, signal or file), not by the cadence

  checkpoint_id() = default;
  /// Identifies the checkpoint of an update; a requested one if `by_request` is true.
  checkpoint_id(std::int64_t number, bool by_request = false) : update(number), requested(by_request) {}
  friend bool operator==(checkpoint_id const&, checkpoint_id const&) = default;
  friend auto operator<=>(checkpoint_id const&, checkpoint_id const&) = default;
};

/// Selects the finished checkpoints to keep once a new one is durable. The new one and every checkpoint that a kept one names
/// as the best are always kept.
struct retention {
  std::int64_t newest = 2;              ///< number of newest scheduled checkpoints
  std::int64_t every = 0;               ///< also every multiple of this number of updates; 0: none
  std::vector<std::int64_t> best = {};  ///< also the checkpoints of these updates
  /// Also keeps the newest checkpoint that is at least this many updates older than the new one, for a rollback, and its
  /// successor. 0: neither.
  std::int64_t rollback_distance = 0;
  /// The new checkpoint was requested. It does not count as one of the newest, and the next save removes it unless another rule
  /// keeps it. Repeated preemptions therefore remove no checkpoint that a rollback may need.
  bool requested = false;
  /// The new checkpoint may replace a scheduled one of the same update, for example after a rollback.
  bool replaces = true;
};

/// The result of a save.
struct saved_checkpoint {
  std::filesystem::path path;   ///< the checkpoint's directory
  std::uint64_t bytes = 0;      ///< total size of its files
  std::string removal_failure;  ///< why an older checkpoint could not be removed; empty on success
  std::string sync_failure;     ///< why a power failure may lose it; empty if it is durable
};

/// A checkpoint that is being written.
struct pending_checkpoint {
  checkpoint_id id;                   ///< identifies the checkpoint
  std::filesystem::path directory;    ///< temporary, until the commit
  std::shared_ptr<manifest> written;  ///< its content so far
};

/// Manages the checkpoints of one directory. Not thread-safe.
class checkpoint_store {
 public:
  using path = std::filesystem::path;  ///< of files and directories

  /// `directory` need not exist before prepare(). `files` must outlive this object.
  explicit checkpoint_store(path directory, file_system& files = real_files())
      : directory_(std::move(directory)), files_(files) {}

  /// Creates the directory and removes the remains of killed saves. Returns why a power failure may lose the directory; empty
  /// if it is durable.
  std::string prepare();

  /// Saves a checkpoint and returns once it is durable. Throws file_error (E02), nonfinite_error (N13), and data_error (E05)
  /// for a tensor that cannot be saved. On an exception older checkpoints are untouched.
  saved_checkpoint save(std::int64_t update, snapshot const& content, retention const& keep);
  // save() in phases, between which other ranks write their files into the directory. Each phase throws what save() does, and
  // removes the unfinished checkpoint on an exception.
  /// Creates the temporary directory. `mark` must be unique to this save if other ranks write into the directory.
  pending_checkpoint open(std::int64_t update, std::string const& run, retention const& keep, std::string const& mark = {});
  /// Writes this process's files.
  void write(pending_checkpoint const& opened, snapshot const& content);
  /// Returns true if ranks 1 to `ranks` - 1 have shown, by probe files, that they can write to the directory. Removes these
  /// files.
  bool is_visible_to_ranks(pending_checkpoint const& opened, int ranks);
  /// Waits for the files of ranks 1 to `ranks` - 1 and adds them. Throws file_error (E02) if a rank shows no progress for
  /// `patience()`, counted from when the previous rank finished.
  void add_rank_files(pending_checkpoint const& opened, int ranks, std::function<std::chrono::milliseconds()> const& patience);
  /// Writes the manifest and renames the directory. Returns once the checkpoint is durable.
  saved_checkpoint commit_checkpoint(pending_checkpoint const& opened, retention const& keep);
  /// Discards an unfinished checkpoint.
  void discard(pending_checkpoint const& opened) { clean_up_quietly(opened.directory, name_of(opened.id)); }

  /// Returns all finished checkpoints by update. A requested one follows the scheduled one of the same update.
  std::vector<checkpoint_id> all();
  /// Returns the updates with a finished checkpoint, oldest first.
  std::vector<std::int64_t> updates();

  /// Returns true if a finished checkpoint of this name exists.
  bool exists(checkpoint_id const& id) { return files_.exists(path_of(id)); }
  /// Returns true if the checkpoint was requested, or cannot be read.
  bool is_requested(checkpoint_id const& id);

  /// Returns the path of an update's scheduled checkpoint, else of the requested one.
  path path_of_update(std::int64_t update) { return path_of({update, !exists(update)}); }
  /// Returns a checkpoint's path, whether it exists or not.
  path path_of(checkpoint_id const& id) const { return directory_ / name_of(id); }

  /// Returns all checkpoints, newest first by time: a run that rolled back saves lower updates later. Unreadable ones come
  /// first, so that they are noticed.
  std::vector<checkpoint_id> newest_first();

  /// Renames a damaged checkpoint, so that it is no longer used but can be inspected.
  void set_aside(checkpoint_id const& id) { move_aside("damaged-", id); }
  /// Keeps a checkpoint under another name after a restart from an older one.
  void rename_abandoned(checkpoint_id const& id);

  /// Removes checkpoints that a rollback to `newest` abandoned, if a kill interrupted their removal.
  void remove_abandoned(checkpoint_id const& newest);

  /// Reads a checkpoint from its directory, as read_checkpoint does.
  using reader = std::function<snapshot(path const&)>;
  /// Loads and verifies one checkpoint (keel/checkpoint/snapshot.hpp). Throws checkpoint_error (E05) on any difference from the
  /// manifest.
  snapshot load(checkpoint_id const& id, reader const& read = {});
  /// Loads and verifies the state of a checkpoint, without its tensors. Throws as load().
  nlohmann::json load_state(checkpoint_id const& id);

 private:
  /// Returns the manifest, or nullopt if it is damaged or belongs to another update.
  std::optional<manifest> look_at(checkpoint_id const& id);
  /// As above, for removals. Returns nullopt also for a checkpoint of an incompatible version.
  std::optional<manifest> look_at_own(checkpoint_id const& id);
  /// Returns true if two run ids match. Checkpoints of older versions have an empty id, which matches any run.
  static bool is_of_one_run(std::string const& a, std::string const& b) { return a.empty() || b.empty() || a == b; }
  /// Returns true for a higher update that the run reached before it rolled back to an ancestor of `newest`.
  static bool is_abandoned(checkpoint_id const& id, manifest const& of_id, checkpoint_id const& newest,
                           manifest const& of_newest);

  static constexpr std::string_view temporary_prefix = ".writing-";
  static constexpr std::string_view replaced_prefix = ".writing-replaced-";
  static constexpr std::string_view removed_prefix = ".writing-removed-";
  static constexpr std::string_view requested_suffix = "-requested";

  static std::string name_of(checkpoint_id const& id);
  static std::optional<checkpoint_id> id_of(std::string const& name);
  /// Returns the checkpoint's name in a directory name with one of the prefixes, or an empty string.
  static std::string name_in(std::string const& directory);

  /// Removes old checkpoints. Returns why one could not be removed; empty on success.
  std::string remove_old(checkpoint_id const& newest, retention const& keep);

  /// Renames checkpoints before removing them, so that a kill leaves no partial checkpoint.
  std::string remove(std::vector<checkpoint_id> const& leave);

  /// Removes a checkpoint's own files and its directory. Other files are kept under a new name; returns a message about them.
  std::string remove_files_of(path const& directory, std::string const& name);

  path free_name(std::string const& name);
  void move_aside(char const* prefix, checkpoint_id const& id) { files_.rename(path_of(id), free_name(prefix + name_of(id))); }

  /// Restores a checkpoint that was moved aside for one that was never committed.
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
