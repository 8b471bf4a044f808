// What each rank but 0 writes of a checkpoint that the ranks write side by side, into the directory that rank 0 opens, seals and renames:
//     optimizer-1.safetensors   its portion of the optimizer's tensors, each of them whole
//     state-1.safetensors       what is rank 1's alone: random state, registered state
//     rank-1.json               lengths and checksums of both, or why there are none; rank 0 takes them into the manifest and removes it
// rank-0.json is the mark by which another rank sees that it is this directory, and which is there as long as rank 0 goes on with the save.
// By rank-1.json, and not by a collective, rank 0 learns that they are durable: beside training there are no collectives to spare.
#pragma once

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <keel/checkpoint/background_task.hpp>
#include <keel/checkpoint/manifest.hpp>
#include <keel/checkpoint/snapshot.hpp>
#include <keel/checkpoint/write_checkpoint.hpp>
#include <keel/core/error.hpp>
#include <keel/core/files.hpp>
#include <keel/core/out_of_memory.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace keel {

namespace detail {

inline std::filesystem::path record_of_rank(std::filesystem::path const& directory, int rank) {
  return directory / ("rank-" + std::to_string(rank) + ".json");
}

/// In this directory, which rank 0 has opened. What was written takes no space where it fails. Rank 0 may give the save up at any time, and
/// says why; then it does nothing.
template <class Files>
void write_files_of_rank(Files& files, std::filesystem::path const& directory, int rank, snapshot const& mine) {
  std::string const of_rank = "-" + std::to_string(rank) + ".safetensors";
  std::string const optimizer = "optimizer" + of_rank, state = "state" + of_rank;
  auto const leave = [&](nlohmann::json const& record) {
    auto const path = record_of_rank(directory, rank), beside = std::filesystem::path(path.string() + ".new");
    // Whoever finds it finds all of it.
    write_text(files, beside, record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    files.rename(beside, path);
  };
  try {
    try {
      nlohmann::json record;
      record["files"][optimizer] = json_of(write_tensors(files, directory / optimizer, mine.optimizer, {}));
      record["files"][state] = json_of(write_tensors(files, directory / state, mine.tensors, {}));
      leave(record);
    } catch (std::exception const& thrown) {
      for (std::string const& name : {optimizer, state}) files.remove_file(directory / name);
      leave({{"failed", thrown.what()}});
    }
  } catch (file_error const&) {
    if (files.exists(record_of_rank(directory, 0))) throw;
  }
}

/// Bytes that a rank has written so far.
template <class Files>
std::uint64_t written_by_rank(Files& files, std::filesystem::path const& directory, int rank) {
  std::uint64_t bytes = 0;
  for (auto const& file : files.list(directory)) {
    if (rank_of_file(file.filename().string()) == rank && files.exists(file)) bytes += files.size(file);
  }
  return bytes;
}

/// Rank 0: waits until each other rank has written its files, and returns what they are, by name. Throws file_error (E02) with what one of
/// them failed by, and world_error (E25) for one that writes nothing more for `patience()`.
template <class Files>
std::map<std::string, file_record> files_of_ranks(Files& files, std::filesystem::path const& directory, int ranks,
                                                  std::function<std::chrono::milliseconds()> const& patience) {
  using clock = std::chrono::steady_clock;
  std::map<std::string, file_record> all;
  for (int rank = 1; rank < ranks; ++rank) {
    auto const path = record_of_rank(directory, rank);
    auto moved = clock::now();
    std::uint64_t bytes = 0;
    while (!files.exists(path)) {
      if (std::uint64_t const now = written_by_rank(files, directory, rank); now != bytes) {
        bytes = now;
        moved = clock::now();
      }
      if (auto const limit = patience(); clock::now() - moved > limit)
        throw world_error("E25", "rank " + std::to_string(rank) +
                                     " has written nothing more of its files of a checkpoint for " +
                                     std::to_string(limit.count()) + " ms. Look at what that process does, and at its disk.");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    try {
      nlohmann::json const record = nlohmann::json::parse(files.read(path));
      if (record.contains("failed"))
        throw file_error("E02", "rank " + std::to_string(rank) + ": " + record["failed"].template get<std::string>());
      for (auto const& [name, entry] : record.at("files").items()) all.emplace(name, record_of_json(entry));
    } catch (nlohmann::json::exception const& thrown) {
      throw file_error("E02", path.string() + " is not what rank " + std::to_string(rank) + " writes (" + thrown.what() +
                                  "). Look at the disk.");
    }
    files.remove_file(path);
  }
  return all;
}

}  // namespace detail

/// Of a rank but 0: its files of checkpoints, in the foreground or beside training.
template <class Files>
class rank_writer {
 public:
  rank_writer(Files files, int rank) : files_(std::move(files)), rank_(rank) {}

  /// This rank sees what rank 0 wrote there.
  bool sees(std::filesystem::path const& file, std::string const& text) {
    try {
      return files_.exists(file) && files_.read(file) == text;
    } catch (file_error const&) {
      // Rank 0 then writes for this one.
      return false;
    }
  }
  /// The one before has ended. Throws file_error (E02) where not even the reason of a failure could be left.
  void write(std::filesystem::path const& directory, snapshot const& mine) {
    detail::write_files_of_rank(files_, directory, rank_, mine);
  }
  /// Returns when there is a copy, from which the files are written.
  void begin(std::filesystem::path const& directory, snapshot const& live) {
    snapshot held;
    try {
      held = buffers_.copy(live);
    } catch (std::exception const& thrown) {
      if (!is_out_of_memory(thrown)) throw;
      buffers_.clear();
      return write(directory, live);
    }
    task_.begin([this, directory, held = std::move(held)] { write(directory, held); });
  }
  /// Waits for the files that are under way; throws as write() does.
  void wait() { task_.collect(); }
  /// Does not wait for them.
  void poll() {
    if (task_.is_done()) wait();
  }

 private:
  Files files_;
  int rank_;
  snapshot_buffers buffers_;
  background_task task_;  ///< last: it ends before what it works with
};

}  // namespace keel
