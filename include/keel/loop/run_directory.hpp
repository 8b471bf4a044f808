// One run's directory: a lock against a second run in it, checkpoints, metrics.jsonl and events.jsonl.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <keel/checkpoint/store.hpp>
#include <keel/error.hpp>
#include <keel/observe/json_lines.hpp>
#include <string>

namespace keel {

template <class Files = posix_files>
class run_directory {
 public:
  /// Makes the directory. Throws file_error: E01 if another run holds it, E02 if it cannot be written.
  run_directory(std::filesystem::path root, Files files)
      : root_(std::move(root)),
        files_(std::move(files)),
        lock_(make_and_lock()),
        store_(root_ / "checkpoints", files_),
        metrics_(root_ / "metrics.jsonl", files_),
        events_(root_ / "events.jsonl", files_) {}

  std::filesystem::path const& root() const { return root_; }
  checkpoint_store<Files>& checkpoints() { return store_; }
  json_lines<Files>& metrics() { return metrics_; }

  /// Adds a line to events.jsonl: what happened, after how many updates, and when.
  void event(char const* name, std::int64_t update, nlohmann::ordered_json details = nlohmann::ordered_json::object()) {
    using namespace std::chrono;
    nlohmann::ordered_json line;
    line["event"] = name;
    line["update"] = update;
    line["time"] = duration<double>(system_clock::now().time_since_epoch()).count();
    line.update(details);
    events_.add(line);
  }

  /// True once for a file `save` that somebody made here, which then goes.
  bool take_save_request() {
    auto const name = root_ / "save";
    if (!files_.exists(name)) return false;
    files_.remove_all(name);
    return true;
  }

  /// A run that begins anew would cut the record and, in time, remove the checkpoints of the one before it. `saves`: this one
  /// keeps checkpoints itself, so that a record without any is an attempt that never came so far. Throws file_error (E01).
  void require_unused(bool saves) {
    bool const has_checkpoints = !store_.updates().empty();
    bool const has_record = !saves && metrics_.size() > 0;
    if (!has_checkpoints && !has_record) return;
    throw file_error("E01", root_.string() +
                                " holds another run, which this one would overwrite. Use another run "
                                "directory, or a recipe with keel::checkpoint::every and options.resume to continue it.");
  }

 private:
  file_handle make_and_lock() {
    files_.make_directories(root_);
    auto const parent = std::filesystem::absolute(root_).lexically_normal().parent_path();
    if (!parent.empty()) files_.sync_directory(parent);
    auto const name = root_ / "lock";
    file_handle lock = files_.try_lock(name);
    if (!lock) {
      throw file_error("E01",
                       "another run is using " + root_.string() + ". Wait for it, stop it, or use another run directory.");
    }
    return lock;
  }

  std::filesystem::path root_;
  Files files_;
  file_handle lock_;
  checkpoint_store<Files> store_;
  json_lines<Files> metrics_;
  json_lines<Files> events_;
};

}  // namespace keel
