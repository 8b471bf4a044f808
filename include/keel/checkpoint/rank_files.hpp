// Files that each rank but 0 writes when the ranks write a checkpoint in parallel. Rank 0 creates, commits and renames the
// directory:
//     model-1.safetensors       rank 1's slices of the parameters; only under shard::zero<3>
//     optimizer-1.safetensors   rank 1's slices of the optimizer's tensors, and its portion of those that are not divided
//     state-1.safetensors       state of rank 1 only: random state and registered state; and its slices of averages
//     rank-1.json               lengths and checksums of these, or why they are missing; rank 0 merges it into the manifest and removes it
//     rank-1.alive              heartbeat: rewritten every half second while rank 1 writes, even if the disk blocks in a long sync
//     rank-1.sees               shows that rank 1 can write to the directory; rank 0 checks it before the first save and removes it
// Rank 0 detects by rank-1.json, not by a collective, that the files are durable, because collectives in the background would
// interfere with training. The directory's name is unique to the save, so that a process of an earlier save never writes into
// it. Rank 0 cancels a save by renaming it.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <keel/checkpoint/background_task.hpp>
#include <keel/checkpoint/manifest.hpp>
#include <keel/checkpoint/snapshot.hpp>
#include <keel/checkpoint/write_checkpoint.hpp>
#include <keel/core/error.hpp>
#include <keel/core/file_system.hpp>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

inline std::filesystem::path rank_file_path(std::filesystem::path const& directory, int rank, char const* extension) {
  return directory / ("rank-" + std::to_string(rank) + extension);
}

/// RAII: writes the heartbeat file of this rank from a thread.
class heartbeat_file {
 public:
  heartbeat_file(file_system& files, std::filesystem::path path) : files_(files), path_(std::move(path)) {
    thread_ = std::thread([this] { run(); });
  }
  heartbeat_file(heartbeat_file const&) = delete;
  heartbeat_file& operator=(heartbeat_file const&) = delete;
  ~heartbeat_file() {
    {
      std::lock_guard<std::mutex> const lock(mutex_);
      is_over_ = true;
    }
    ends_.notify_one();
    thread_.join();
  }

 private:
  static constexpr std::chrono::milliseconds every{500};

  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (std::int64_t count = 1; !ends_.wait_for(lock, every, [this] { return is_over_; }); ++count) {
      try {
        std::string const text = std::to_string(count);
        auto const file = files_.create(path_);
        files_.write(file, path_, text.data(), text.size());
      } catch (std::exception const&) {
        // The write that this accompanies fails on the same disk and reports the error.
      }
    }
  }

  file_system& files_;
  std::filesystem::path path_;
  std::mutex mutex_;
  std::condition_variable ends_;
  bool is_over_ = false;
  std::thread thread_;  ///< last, because it uses the other members
};

/// Writes this rank's files into a directory that rank 0 has opened. On failure removes the files and leaves a description of
/// the failure for rank 0. Throws file_error (E02) with the original failure if even that cannot be written. Returns silently
/// if rank 0 has cancelled the save.
inline void write_rank_files(file_system& files, std::filesystem::path const& directory, int rank, snapshot const& local) {
  std::string const of_rank = "-" + std::to_string(rank) + ".safetensors";
  struct rank_file {
    std::string name;
    tensor_map const& tensors;
    slice_map const& slices;
  };
  std::vector<rank_file> written{{"optimizer" + of_rank, local.optimizer, local.optimizer_slices},
                                 {"state" + of_rank, local.tensors, local.tensor_slices}};
  if (!local.model.empty()) written.push_back({"model" + of_rank, local.model, local.model_slices});
  auto const alive = rank_file_path(directory, rank, ".alive");
  auto const leave = [&](nlohmann::json const& record) {
    auto const path = rank_file_path(directory, rank, ".json"), beside = rank_file_path(directory, rank, ".json.new");
    // Written under another name and renamed, so that a reader never sees a partial file.
    write_text(files, beside, record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    files.rename(beside, path);
  };
  std::string failure, id;
  try {
    nlohmann::json record;
    {
      heartbeat_file const shown(files, alive);
      for (rank_file const& one : written)
        record["files"][one.name] = json_of(write_tensors(files, directory / one.name, one.tensors, one.slices));
    }
    files.remove_file(alive);
    files.sync_directory(directory);
    return leave(record);
  } catch (error const& thrown) {
    id = thrown.id();
    failure = without_id(thrown.what());
  } catch (std::exception const& thrown) {
    failure = thrown.what();
  }
  if (!files.exists(directory)) return;
  try {
    for (rank_file const& one : written) files.remove_file(directory / one.name);
    files.remove_file(alive);
    leave({{"failed", failure}, {"id", id}});
  } catch (file_error const&) {
    if (files.exists(directory)) throw file_error("E02", failure);
  }
}

/// Waits until each other rank has written its files, and returns their records by name. Called on rank 0. Throws file_error
/// (E02) if a rank's disk failed, or if a rank shows no heartbeat for `patience()`. Throws world_error (E25) for any other
/// failure of a rank.
inline std::map<std::string, file_record> collect_rank_files(file_system& files, std::filesystem::path const& directory,
                                                             int ranks,
                                                             std::function<std::chrono::milliseconds()> const& patience) {
  using clock = std::chrono::steady_clock;
  using std::chrono::milliseconds;
  std::map<std::string, file_record> all;
  for (int rank = 1; rank < ranks; ++rank) {
    std::string const who = "rank " + std::to_string(rank);
    auto const path = rank_file_path(directory, rank, ".json"), alive = rank_file_path(directory, rank, ".alive");
    auto shown_at = clock::now(), looked_at = shown_at;
    std::string shown;
    for (milliseconds pause(1); !files.exists(path); pause = std::min(2 * pause, milliseconds(50))) {
      auto const now = clock::now();
      if (now - looked_at >= milliseconds(250)) {
        looked_at = now;
        // Listing the directory makes a network file system refresh its cache of missing files.
        static_cast<void>(files.list(directory));
        // The rank may finish and remove the file between the two calls.
        try {
          std::string const text = files.exists(alive) ? files.read(alive) : shown;
          if (text != shown) shown_at = now;
          shown = text;
        } catch (file_error const&) {
          if (files.exists(alive)) throw;
        }
      }
      if (auto const limit = patience(); now - shown_at > limit)
        throw file_error("E02", who + " has reported no progress for " + std::to_string(limit.count()) +
                                    " ms while writing its files of a checkpoint. Check that process.");
      std::this_thread::sleep_for(pause);
    }
    try {
      nlohmann::json const record = nlohmann::json::parse(files.read(path));
      if (record.contains("failed")) {
        auto const words = record["failed"].template get<std::string>();
        std::string const id = record.value("id", "");
        if (id == "E02") throw file_error("E02", who + ": " + words);
        throw world_error("E25", who + ": " + (id.empty() ? words : "[" + id + "] " + words));
      }
      for (auto const& [name, entry] : record.at("files").items()) all.emplace(name, record_of_json(entry));
    } catch (nlohmann::json::exception const& thrown) {
      throw file_error("E02", path.string() + " is not a valid file of " + who + " (" + thrown.what() + "). Check the disk.");
    }
    files.remove_file(path);
  }
  return all;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Writes the checkpoint files of a rank above 0, synchronously or in the background.
class rank_writer {
 public:
  rank_writer(file_system& files, int rank) : files_(files), rank_(rank) {}

  /// Returns true if this rank can write to the directory. Rank 0 then checks that it sees the file written here.
  bool can_write(std::filesystem::path const& directory) {
    try {
      if (!files_.exists(directory)) return false;
      static_cast<void>(files_.create(detail::rank_file_path(directory, rank_, ".sees")));
      return true;
    } catch (file_error const&) {
      // Rank 0 then writes this rank's portion.
      return false;
    }
  }
  /// Writes synchronously; no earlier write may be running. Throws file_error (E02) if not even the reason of a failure could
  /// be written.
  void write(std::filesystem::path const& directory, snapshot const& local) {
    detail::write_rank_files(files_, directory, rank_, local);
  }
  /// Copies the state and starts writing it in the background. Writes synchronously if memory has no room for a copy.
  void begin(std::filesystem::path const& directory, snapshot const& live) {
    auto held = buffers_.copy_if_room(live);
    if (!held) return write(directory, live);
    task_.begin([this, directory, held = *std::move(held)] { write(directory, held); });
  }
  /// Waits for the background write; throws as write() does.
  void wait() { task_.collect(); }
  /// Collects a finished background write; does not block.
  void poll() {
    if (task_.is_done()) wait();
  }

 private:
  file_system& files_;
  int rank_;
  snapshot_buffers buffers_;
  background_task task_;  ///< last, so that it ends before the members that it uses are destroyed
};

}  // namespace keel::inline KEEL_MODE
