// Checkpoints in a directory, each a directory `step-000000500` of its own:
//     model.safetensors      parameters and buffers
//     optimizer.safetensors  moments, by parameter name
//     state.safetensors      random state and what else is a tensor
//     state.json             recipe, counters, schedule, scaler, data cursor, optimizer options
//     manifest.json          lengths and checksums of the files above and of their tensors, and who wrote them
// A save writes into a temporary directory, syncs every file and the directory, renames it, and syncs the parent; only
// then are older ones removed. So there are never fewer good checkpoints than before a save began, wherever it is killed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <keel/checkpoint/files.hpp>
#include <keel/checkpoint/read_checkpoint.hpp>
#include <keel/checkpoint/snapshot.hpp>
#include <keel/checkpoint/write_checkpoint.hpp>
#include <keel/error.hpp>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel {

/// Which finished checkpoints stay when a new one is durable: that one, and of those that were saved in their turn
struct retention {
  std::int64_t newest = 2;             ///< so many
  std::int64_t every = 0;              ///< also those of updates that are a multiple of it; 0: none
  std::optional<std::int64_t> best{};  ///< also this one
  /// The new one is out of turn, and gives way to the next. Three preemptions in a row then take nothing away that a rollback
  /// may need.
  bool extra = false;
};

struct saved_checkpoint {
  std::filesystem::path path;
  std::uint64_t bytes = 0;
  std::string not_removed;  ///< why an older one could not be removed; empty: all is as it should be
};

template <class Files = posix_files>
class checkpoint_store {
 public:
  using path = std::filesystem::path;

  explicit checkpoint_store(path directory, Files files = {}) : directory_(std::move(directory)), files_(std::move(files)) {}

  /// Makes the directory and removes what a killed save left behind.
  void prepare() {
    files_.make_directories(directory_);
    files_.sync_directory(directory_.parent_path());
    put_back();
    for (path const& entry : files_.list(directory_)) {
      if (entry.filename().string().starts_with(temporary_prefix)) files_.remove_all(entry);
    }
  }

  /// Returns when the checkpoint is durable. Throws file_error (E02), nonfinite_error (N13), data_error (E05) for a tensor that
  /// cannot be saved; older checkpoints are then untouched.
  saved_checkpoint save(std::int64_t update, snapshot const& content, retention const& keep) {
    saved_checkpoint saved;
    saved.path = path_of(update);
    path const temporary = directory_ / (temporary_prefix + name_of(update));
    try {
      put_back();
      // Of an update that was saved in its turn the newer checkpoint takes that place, too.
      bool const extra = keep.extra && !(files_.exists(saved.path) && !is_extra(update));
      files_.remove_all(temporary);
      files_.make_directories(temporary);
      saved.bytes = detail::write_checkpoint(files_, temporary, update, extra, content);
      // A finished step with this number steps aside and is not removed; put_back finds it after a kill between the renames.
      path const replaced = directory_ / (std::string(replaced_prefix) + name_of(update));
      files_.remove_all(replaced);
      if (files_.exists(saved.path)) files_.rename(saved.path, replaced);
      files_.rename(temporary, saved.path);
      files_.sync_directory(directory_);
    } catch (...) {
      // Whatever it was goes on; half of a checkpoint does not stay.
      clean_up_quietly(temporary);
      throw;
    }
    try {
      remove_old(update, keep);
    } catch (file_error const& thrown) {
      // The save itself is durable; that a disk fills with old ones is the caller's to say.
      saved.not_removed = thrown.what();
    }
    return saved;
  }

  /// The updates of all finished checkpoints, oldest first.
  std::vector<std::int64_t> updates() {
    std::vector<std::int64_t> found;
    if (!files_.exists(directory_)) return found;
    for (path const& entry : files_.list(directory_)) {
      if (auto const update = update_of(entry.filename().string())) found.push_back(*update);
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  /// It was saved out of turn; so is what cannot be read.
  bool is_extra(std::int64_t update) {
    auto const all = look_at(update);
    return !all || all->extra;
  }

  path path_of(std::int64_t update) const { return directory_ / name_of(update); }

  /// The updates of all finished checkpoints, newest first: a run that went back saves lower updates after higher ones. What
  /// cannot be read comes first, so that somebody hears of it.
  std::vector<std::int64_t> newest_first() {
    std::vector<std::pair<std::int64_t, std::int64_t>> found;
    for (std::int64_t const update : updates()) {
      auto const all = look_at(update);
      found.emplace_back(all ? all->generation : std::numeric_limits<std::int64_t>::max(), update);
    }
    std::sort(found.rbegin(), found.rend());
    std::vector<std::int64_t> order;
    for (auto const& one : found) order.push_back(one.second);
    return order;
  }

  /// A checkpoint that is damaged is no longer one, and stays for whoever looks into it.
  void set_aside(std::int64_t update) {
    path const name = directory_ / ("damaged-" + name_of(update));
    files_.remove_all(name);
    files_.rename(path_of(update), name);
  }
  /// A restart from an older checkpoint abandons this one; it stays on the disk under another name.
  void abandon(std::int64_t update) {
    path name = directory_ / ("abandoned-" + name_of(update));
    for (int again = 2; files_.exists(name); ++again)
      name = directory_ / ("abandoned-" + name_of(update) + "-" + std::to_string(again));
    files_.rename(path_of(update), name);
    files_.sync_directory(directory_);
  }

  /// Removes what a run that went back to `newest` had abandoned, where a kill came in between.
  void remove_abandoned(std::int64_t newest) {
    auto const kept = look_at(newest);
    std::vector<std::int64_t> leave;
    for (std::int64_t const update : updates()) {
      auto const all = look_at(update);
      if (update > newest && kept && all && all->generation < kept->generation) leave.push_back(update);
    }
    remove(leave);
  }

  /// Reads and verifies one checkpoint. Throws checkpoint_error (E05) if anything in it differs from what was written.
  snapshot load(std::int64_t update) {
    auto const all = read_manifest(path_of(update), files_);
    if (all.update != update)
      detail::refuse_checkpoint(
          path_of(update), "holds update " + std::to_string(all.update) + ": somebody renamed it from " + name_of(all.update));
    return read_checkpoint(path_of(update), files_);
  }

 private:
  /// Nothing if it is damaged.
  std::optional<manifest> look_at(std::int64_t update) {
    try {
      return read_manifest(path_of(update), files_);
    } catch (checkpoint_error const& thrown) {
      if (thrown.id() != "E05") throw;
      return std::nullopt;
    }
  }

  static constexpr char const* temporary_prefix = ".writing-";
  static constexpr char const* replaced_prefix = ".writing-replaced-";
  static constexpr char const* removed_prefix = ".writing-removed-";

  static std::string name_of(std::int64_t update) {
    char name[32];
    std::snprintf(name, sizeof name, "step-%09lld", static_cast<long long>(update));
    return name;
  }
  static std::optional<std::int64_t> update_of(std::string const& name) {
    if (!name.starts_with("step-") || name.size() < 14) return std::nullopt;
    std::int64_t update = 0;
    for (char const letter : name.substr(5)) {
      if (letter < '0' || letter > '9' || update > std::int64_t{1} << 58) return std::nullopt;
      update = update * 10 + (letter - '0');
    }
    // With other zeros it is no name that a save gives.
    if (name != name_of(update)) return std::nullopt;
    return update;
  }

  void remove_old(std::int64_t newest, retention const& keep) {
    auto found = updates();
    std::vector<std::int64_t> leave;
    // Higher numbers than the newest are from an abandoned future and no part of this run any more.
    while (!found.empty() && found.back() > newest) {
      leave.push_back(found.back());
      found.pop_back();
    }
    std::int64_t in_turn = 0;
    for (auto update = found.rbegin(); update != found.rend(); ++update) {
      bool const young = !is_extra(*update) && ++in_turn <= keep.newest;
      bool const one_of_many = keep.every > 0 && *update % keep.every == 0;
      if (!young && !one_of_many && keep.best != *update && *update != newest) leave.push_back(*update);
    }
    remove(leave);
  }

  /// First under another name, so that a kill while its files go away leaves no half of a checkpoint.
  void remove(std::vector<std::int64_t> const& leave) {
    for (std::int64_t const update : leave) {
      path const aside = directory_ / (std::string(removed_prefix) + name_of(update));
      files_.remove_all(aside);
      files_.rename(path_of(update), aside);
    }
    if (!leave.empty()) files_.sync_directory(directory_);
    for (path const& entry : files_.list(directory_)) {
      std::string const name = entry.filename().string();
      if (name.starts_with(removed_prefix) || name.starts_with(replaced_prefix)) files_.remove_all(entry);
    }
  }

  /// A checkpoint that stepped aside for one that never came takes its place again.
  void put_back() {
    std::string const prefix = replaced_prefix;
    for (path const& entry : files_.list(directory_)) {
      std::string const name = entry.filename().string();
      if (!name.starts_with(prefix)) continue;
      path const back = directory_ / name.substr(prefix.size());
      if (!files_.exists(back)) files_.rename(entry, back);
    }
  }

  void clean_up_quietly(path const& temporary) {
    try {
      put_back();
      files_.remove_all(temporary);
    } catch (file_error const&) {
      // The save has already failed with the error that matters; prepare() removes this the next time.
    }
  }

  path directory_;
  Files files_;
};

}  // namespace keel
