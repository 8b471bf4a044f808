// Checkpoints in a directory, each a directory `step-000000500` of its own:
//     model.safetensors      parameters and buffers
//     optimizer.safetensors  moments, by parameter name
//     state.safetensors      random state and what else is a tensor
//     state.json             recipe, counters, schedule, scaler, data cursor, optimizer options
//     manifest.json          length and XXH3 of the files above, computed while they were written
// A save writes into a temporary directory, syncs every file and the directory, renames it, and syncs the parent; only
// then are older ones removed. So there are never fewer good checkpoints than before a save began, wherever it is killed.
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <keel/checkpoint/files.hpp>
#include <keel/checkpoint/safetensors.hpp>
#include <keel/error.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace keel {

/// All that one checkpoint holds.
struct snapshot {
  tensor_map model;
  tensor_map optimizer;
  tensor_map tensors;  ///< of the state
  nlohmann::json state;
};

template <class Files = posix_files>
class checkpoint_store {
 public:
  using path = std::filesystem::path;

  /// `keep`: how many of the newest stay.
  checkpoint_store(path directory, std::int64_t keep, Files files = {})
      : directory_(std::move(directory)), keep_(keep), files_(std::move(files)) {}

  /// Makes the directory and removes what a killed save left behind.
  void prepare() {
    files_.make_directories(directory_);
    files_.sync_directory(directory_.parent_path());
    put_back();
    for (path const& entry : files_.list(directory_)) {
      if (entry.filename().string().starts_with(temporary_prefix)) files_.remove_all(entry);
    }
  }

  /// Returns when the checkpoint is durable. Throws file_error (E02); older checkpoints are then untouched.
  void save(std::int64_t update, snapshot const& content) {
    path const final_name = directory_ / name_of(update);
    path const temporary = directory_ / (temporary_prefix + name_of(update));
    try {
      put_back();
      files_.remove_all(temporary);
      files_.make_directories(temporary);
      nlohmann::json manifest = {{"format", 1}, {"files", nlohmann::json::object()}};
      write_tensors(temporary, "model.safetensors", content.model, manifest);
      write_tensors(temporary, "optimizer.safetensors", content.optimizer, manifest);
      write_tensors(temporary, "state.safetensors", content.tensors, manifest);
      write_text(temporary, "state.json", content.state.dump(2) + "\n", &manifest);
      write_text(temporary, "manifest.json", manifest.dump(2) + "\n", nullptr);
      files_.sync_directory(temporary);
      // A finished step with this number steps aside and is not removed; put_back finds it after a kill between the renames.
      path const replaced = directory_ / (std::string(temporary_prefix) + "replaced-" + name_of(update));
      files_.remove_all(replaced);
      if (files_.exists(final_name)) files_.rename(final_name, replaced);
      files_.rename(temporary, final_name);
      files_.sync_directory(directory_);
      files_.remove_all(replaced);
    } catch (file_error const&) {
      clean_up_quietly(temporary);
      throw;
    }
    remove_old(update);
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

  path path_of(std::int64_t update) const { return directory_ / name_of(update); }

  /// Reads and verifies one checkpoint. Throws checkpoint_error (E05) if anything in it differs from what was written.
  snapshot load(std::int64_t update) {
    path const from = path_of(update);
    for (char const* const name :
         {"manifest.json", "model.safetensors", "optimizer.safetensors", "state.safetensors", "state.json"}) {
      if (!files_.exists(from / name)) {
        throw checkpoint_error("E05", (from / name).string() + " is missing. Take an older checkpoint, and look at the disk.");
      }
    }
    nlohmann::json const manifest = parse(from / "manifest.json", files_.read(from / "manifest.json"));
    if (!manifest.is_object() || manifest.value("format", nlohmann::json()) != 1) {
      throw checkpoint_error("E05", (from / "manifest.json").string() +
                                        " is of a format that this version does not know. Take an older "
                                        "checkpoint, or the version of keel that wrote it.");
    }
    snapshot content;
    content.model = read_tensors(from, "model.safetensors", manifest);
    content.optimizer = read_tensors(from, "optimizer.safetensors", manifest);
    content.tensors = read_tensors(from, "state.safetensors", manifest);
    content.state = parse(from / "state.json", read_verified(from, "state.json", manifest));
    return content;
  }

 private:
  static constexpr char const* temporary_prefix = ".writing-";

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
    return update;
  }

  struct hash_state {
    hash_state() : state(XXH3_createState()) { XXH3_64bits_reset(state.get()); }
    struct free_state {
      void operator()(XXH3_state_t* of) const { XXH3_freeState(of); }
    };
    std::unique_ptr<XXH3_state_t, free_state> state;
    void add(char const* bytes, std::size_t count) { XXH3_64bits_update(state.get(), bytes, count); }
    std::string digest() const {
      char hex[17];
      std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(XXH3_64bits_digest(state.get())));
      return hex;
    }
  };

  template <class Fill>
  void write_file(path const& directory, char const* name, nlohmann::json* manifest, Fill&& fill) {
    path const full = directory / name;
    file_handle const file = files_.create(full);
    hash_state hash;
    std::uint64_t size = 0;
    fill([&](char const* bytes, std::size_t count) {
      files_.write(file, full, bytes, count);
      hash.add(bytes, count);
      size += count;
    });
    files_.sync(file, full);
    if (manifest != nullptr) (*manifest)["files"][name] = {{"bytes", size}, {"xxh3", hash.digest()}};
  }
  void write_tensors(path const& directory, char const* name, tensor_map const& tensors, nlohmann::json& manifest) {
    write_file(directory, name, &manifest, [&](auto&& sink) { write_safetensors(tensors, {}, sink); });
  }
  void write_text(path const& directory, char const* name, std::string const& text, nlohmann::json* manifest) {
    write_file(directory, name, manifest, [&](auto&& sink) { sink(text.data(), text.size()); });
  }

  std::string read_verified(path const& directory, char const* name, nlohmann::json const& manifest) {
    path const full = directory / name;
    std::string bytes = files_.read(full);
    hash_state hash;
    hash.add(bytes.data(), bytes.size());
    nlohmann::json const expected = {{"bytes", bytes.size()}, {"xxh3", hash.digest()}};
    bool const listed =
        manifest.is_object() && manifest.contains("files") && manifest["files"].is_object() && manifest["files"].contains(name);
    if (!listed || manifest["files"][name] != expected) {
      throw checkpoint_error("E05", full.string() +
                                        " is not what was saved: its length or checksum differs from manifest.json. Take "
                                        "an older checkpoint, and look at the disk.");
    }
    return bytes;
  }
  tensor_map read_tensors(path const& directory, char const* name, nlohmann::json const& manifest) {
    std::string const bytes = read_verified(directory, name, manifest);
    return parse_safetensors(std::span<char const>(bytes.data(), bytes.size()), (directory / name).string()).tensors;
  }
  static nlohmann::json parse(path const& name, std::string const& words) {
    try {
      return nlohmann::json::parse(words);
    } catch (nlohmann::json::exception const& thrown) {
      throw checkpoint_error("E05", name.string() + " is not JSON (" + thrown.what() + "). Take an older checkpoint.");
    }
  }

  void remove_old(std::int64_t newest) {
    auto found = updates();
    // Higher numbers than the newest are from an abandoned future and no part of this run any more.
    std::erase_if(found, [&](std::int64_t update) {
      if (update <= newest) return false;
      files_.remove_all(path_of(update));
      return true;
    });
    while (static_cast<std::int64_t>(found.size()) > keep_) {
      files_.remove_all(path_of(found.front()));
      found.erase(found.begin());
    }
  }

  /// A checkpoint that stepped aside for one that never came takes its place again.
  void put_back() {
    std::string const prefix = std::string(temporary_prefix) + "replaced-";
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
  std::int64_t keep_;
  Files files_;
};

}  // namespace keel
