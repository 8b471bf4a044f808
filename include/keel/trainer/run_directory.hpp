// The directory of a run: a lock that excludes other runs, checkpoints, recipe.json, metrics.jsonl, layers.jsonl and events.jsonl.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <keel/checkpoint/store.hpp>
#include <keel/core/error.hpp>
#include <keel/core/seconds_since_1970.hpp>
#include <keel/json/lines.hpp>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

class run_directory {
 public:
  /// Creates and locks the directory. Resolves a relative path against the current directory now. `files` must outlive this object. Throws
  /// file_error: E01 if another run holds the lock, E02 if the directory cannot be written.
  run_directory(std::filesystem::path const& root, file_system& files)
      : root_(std::filesystem::absolute(root)),
        files_(files),
        lock_(make_and_lock()),
        store_(root_ / "checkpoints", files_),
        metrics_(root_ / "metrics.jsonl", files_),
        layers_(root_ / "layers.jsonl", files_),
        events_(root_ / "events.jsonl", files_) {
    sign_lock();
    for (char const* const record : {"metrics.jsonl", "layers.jsonl", "events.jsonl", "console.log"})
      require_file(root_ / record);
  }

  std::filesystem::path const& root() const { return root_; }
  file_system& files() { return files_; }
  checkpoint_store& checkpoints() { return store_; }
  json_lines& metrics() { return metrics_; }
  json_lines& layers() { return layers_; }

  /// Replaces a small file of the directory. Throws file_error (E02) if it cannot be written.
  void write(char const* name, std::string const& content) {
    auto const target = root_ / name;
    auto const beside = root_ / (std::string(name) + ".new");
    try {
      {
        // Remove a leftover of a killed run, or a link.
        files_.remove_file(beside);
        auto const file = files_.create_new(beside);
        files_.write(file, beside, content.data(), content.size());
        files_.sync(file, beside);
      }
      files_.rename(beside, target);
    } catch (file_error const&) {
      files_.remove_file(beside);
      throw;
    }
  }

  /// Appends a line to events.jsonl with the event's name, `update`, the time and `details`.
  void event(char const* name, std::int64_t update, nlohmann::ordered_json const& details = nlohmann::ordered_json::object()) {
    nlohmann::ordered_json line;
    line["event"] = name;
    line["update"] = update;
    line["time"] = detail::seconds_since_1970();
    line.update(details);
    events_.add(line);
  }

  /// If a user has created a file `save` in the directory, removes it and returns true. Keeps a directory of that name, or a file of more
  /// than 4096 bytes, because it is probably data.
  bool take_save_request() {
    constexpr std::uint64_t max_note_bytes = 4096;
    auto const name = root_ / "save";
    if (files_.kind(name) != file_kind::file || files_.size(name) > max_note_bytes) return false;
    files_.remove_file(name);
    return true;
  }

  /// Takes the lock again, and returns true, if the file `lock` was removed or this process was forked; else returns false. Throws
  /// file_error (E01) if another process has the lock: both would save into the same directory.
  bool require_lock() {
    auto const name = root_ / "lock";
    // A forked process shares its parent's lock without owning it.
    if (process_ == ::getpid() && files_.is_named(lock_.handle, name)) return false;
    lock_result again = files_.try_lock(name);
    if (!again.handle)
      throw file_error("E01",
                       root_.string() + " is in use by another run" + holder() +
                           ": the file `lock` was removed before the other run started, or this process was forked from the "
                           "other. This run saves nothing more. Stop one of them, and give the other its own run directory.");
    lock_ = std::move(again);
    process_ = ::getpid();
    sign_lock();
    return true;
  }

  /// Returns the reasons, added since the last call, why guarantees of this directory are weaker than usual; one sentence each.
  std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }
  void warn(std::string sentence) {
    if (!sentence.empty()) warnings_.push_back(std::move(sentence));
  }

  /// Throws file_error (E01) if the directory holds another run, whose checkpoints a new run would eventually delete. `saves`: this run
  /// saves checkpoints. A record without checkpoints is then accepted: its run never saved one, or they were moved away.
  void require_unused(bool saves) {
    bool const has_checkpoints = !store_.updates().empty();
    bool const has_record = !saves && metrics_.size() > 0;
    if (!has_checkpoints && !has_record) return;
    throw file_error("E01", root_.string() +
                                " contains another run, which this one would overwrite. Use another run directory, or a recipe "
                                "with keel::checkpoint::every and options.resume to continue it.");
  }

 private:
  /// Throws file_error (E02) if `name` exists and is not a regular file. Checked before the run, so that it does not fail hours later.
  void require_file(std::filesystem::path const& name) {
    file_kind const kind = files_.kind(name);
    if (kind == file_kind::none || kind == file_kind::file) return;
    throw file_error("E02", name.string() +
                                " is a link, a pipe or a directory, but must be a regular file: the run truncates it and "
                                "appends to it. Remove it, or make the run directory itself a link.");
  }
  lock_result make_and_lock() {
    files_.make_directories(root_);
    // The parent_path() of a path with a trailing slash is that path without the slash.
    auto const root = root_.lexically_normal();
    auto const parent = root.has_filename() ? root.parent_path() : root.parent_path().parent_path();
    if (!parent.empty()) warn(files_.sync_directory(parent));
    lock_result lock = files_.try_lock(root_ / "lock");
    if (!lock.handle)
      throw file_error("E01", "another run" + holder() + " is using " + root_.string() +
                                  ". Wait for it, stop it, or use another run directory.");
    if (!lock.unsupported.empty())
      warn("the file system of " + root_.string() + " does not support locks (" + lock.unsupported +
           "), so a second run in this directory would not be detected");
    return lock;
  }

  /// Writes this process's id into the lock file, for error messages.
  void sign_lock() {
    auto const name = root_ / "lock";
    try {
      // Leave a file of that name alone if keel did not write it.
      if (files_.kind(name) != file_kind::file || (files_.size(name) > 0 && holder().empty())) return;
      std::string const process = std::to_string(::getpid()) + "\n";
      files_.truncate(name, 0);
      files_.write(lock_.handle, name, process.data(), process.size());
    } catch (file_error const& thrown) {
      // The lock is held regardless of its text.
      warn(std::string("the process id could not be written into the lock file: ") + thrown.what());
    }
  }
  /// Returns " (process 1234)" from the lock file; empty if it contains no process id.
  std::string holder() {
    try {
      std::string text = files_.read(root_ / "lock");
      text.erase(std::min(text.find('\n'), text.size()));
      bool const is_number = !text.empty() && text.size() < 12 && text.find_first_not_of("0123456789") == std::string::npos;
      return is_number ? " (process " + text + ")" : "";
    } catch (file_error const&) {
      // Error messages omit the process id if it cannot be read.
      return "";
    }
  }

  std::filesystem::path root_;
  file_system& files_;
  std::vector<std::string> warnings_;
  lock_result lock_;
  pid_t process_ = ::getpid();  ///< process that took the lock
  checkpoint_store store_;
  json_lines metrics_;
  json_lines layers_;
  json_lines events_;
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Throws file_error (E02) if `directory` is a run directory although a single checkpoint is required.
inline void require_no_run_directory(std::filesystem::path const& directory) {
  if (!real_files().exists(directory / "checkpoints")) return;
  checkpoint_store of_run(directory / "checkpoints");
  auto const saved = of_run.updates();
  throw file_error("E02", directory.string() + " is a run directory, but options.resume_from must name one checkpoint. " +
                              (saved.empty() ? "This directory has none yet."
                                             : "Its newest is " + of_run.path_of_update(saved.back()).string() + "."));
}

}  // namespace keel::detail::inline KEEL_MODE
