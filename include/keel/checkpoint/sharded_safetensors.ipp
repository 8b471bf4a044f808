// Definitions for sharded_safetensors.hpp.
#pragma once

#include <cstdio>
#include <deque>
#include <keel/checkpoint/safetensors.hpp>
#include <keel/checkpoint/safetensors_writer.hpp>
#include <keel/checkpoint/sharded_safetensors.hpp>
#include <keel/core/error.hpp>
#include <keel/core/replace_file.hpp>
#include <keel/json/text.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

struct shard_plan {
  std::vector<tensor_map> shards;
  std::set<std::string> aliases;  ///< names of tensors that another name in the same shard already stores
  std::uint64_t total = 0;        ///< total size of the data in bytes
};

/// Distributes the tensors over files. All names of one tensor are in the same file, because an alias refers to a name in its
/// own file.
inline shard_plan plan_shards(tensor_map const& tensors, std::uint64_t max_bytes) {
  shard_plan plan;
  plan.shards.resize(1);
  std::map<safetensors_writer::identity, std::size_t> shard_of;
  std::uint64_t held = 0;
  for (auto const& [name, tensor] : tensors) {
    bool const has_memory = tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage();
    if (has_memory) {
      auto const known = shard_of.find(safetensors_writer::identity_of(tensor));
      if (known != shard_of.end()) {
        plan.shards[known->second].emplace(name, tensor);
        plan.aliases.insert(name);
        continue;
      }
    }
    std::uint64_t const bytes = has_memory ? tensor.nbytes() : 0;
    if (held > 0 && held + bytes > max_bytes) {
      plan.shards.emplace_back();
      held = 0;
    }
    held += bytes;
    plan.total += bytes;
    plan.shards.back().emplace(name, tensor);
    if (has_memory) shard_of.emplace(safetensors_writer::identity_of(tensor), plan.shards.size() - 1);
  }
  return plan;
}

inline std::string shard_name(std::string const& stem, std::size_t index, std::size_t count) {
  char number[48];
  std::snprintf(number, sizeof number, "-%05zu-of-%05zu", index + 1, count);
  return stem + number + ".safetensors";
}

/// Returns the resolved path of an existing index; nullopt if there is none. Throws error (E12) if it is not a file.
KEEL_BODY std::optional<std::filesystem::path> older_index(file_system& files, std::filesystem::path const& name) {
  auto const target = replaceable_file(name);
  if (!target)
    throw error("E12", name.string() + " is not a file, so the index cannot be written there. Move it away, or pass " +
                           "save_sharded_safetensors another directory or name.");
  return files.exists(*target) ? target : std::nullopt;
}

/// Throws error (E12) for a name that JSON cannot represent; tensor names were checked with the headers.
inline std::string index_text(shard_plan const& plan, std::string const& stem) {
  nlohmann::json index = {{"metadata", {{"total_size", plan.total}}}, {"weight_map", nlohmann::json::object()}};
  for (std::size_t i = 0; i < plan.shards.size(); ++i) {
    std::string const file = shard_name(stem, i, plan.shards.size());
    // List aliases too: other readers look up each name in the file, where an alias exists only in the metadata.
    for (auto const& [name, tensor] : plan.shards[i]) {
      if (!plan.aliases.contains(name)) index["weight_map"][name] = file;
    }
  }
  try {
    return index.dump(2) + "\n";
  } catch (nlohmann::json::type_error const&) {
    throw error("E12", "the name " + shown_name(stem) + " is not UTF-8, so an index cannot contain it. Pass " +
                           "save_sharded_safetensors another name.");
  }
}

KEEL_BODY void throw_damaged_index(std::filesystem::path const& index_path, std::string const& what) {
  throw checkpoint_error("E05",
                         index_path.string() + " " + what + ". Use an older checkpoint, or download all of its files again.");
}

KEEL_BODY string_map read_weight_map(std::filesystem::path const& index_path) {
  auto const fail = [&](std::string const& what) { throw_damaged_index(index_path, what); };
  nlohmann::json index;
  try {
    index = parse_json(file_system().read(index_path));
  } catch (json_text_error const& thrown) {
    fail(std::string("is not an index: ") + thrown.what());
  }
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    fail("is not an index with a weight_map");
  string_map file_of;
  for (auto const& [name, file] : index["weight_map"].items()) {
    if (!file.is_string()) fail("names no file for " + shown_name(name));
    auto const words = file.template get<std::string>();
    // The index must not refer to files outside its directory.
    if (words.empty() || words.find('/') != words.npos || words.find('\0') != words.npos || words == "." || words == "..")
      fail("names the file " + shown_name(words) + ", which is not a file name in its directory");
    file_of.emplace(name, words);
  }
  return file_of;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY void save_sharded_safetensors(std::filesystem::path const& directory, std::string const& stem,
                                        tensor_map const& tensors, std::uint64_t max_bytes, string_map const& metadata,
                                        file_system& files) {
  using namespace detail;
  if (max_bytes < 1)
    throw error("E12", "the size limit of a file is 0 bytes. Pass a size such as 5 GB to save_sharded_safetensors.");
  if (stem.find('/') != stem.npos)
    throw error("E12", "the name " + shown_name(stem) + " is a path, but must be a file name. Pass save_sharded_safetensors " +
                           "the path as its directory.");
  auto const index_path = directory / (stem + ".safetensors.index.json");
  auto const old_index = older_index(files, index_path);

  auto const plan = plan_shards(tensors, max_bytes);
  bool const one_file = plan.shards.size() == 1;
  std::vector<safetensors_writer> writers;
  writers.reserve(plan.shards.size());
  for (auto const& shard : plan.shards) writers.emplace_back(shard, metadata);

  std::string const index = one_file ? std::string() : index_text(plan, stem);

  // A deque, because a replacement cannot be moved.
  std::deque<replacement> written;
  for (std::size_t i = 0; i < writers.size(); ++i) {
    auto& shard =
        written.emplace_back(files, directory / (one_file ? stem + ".safetensors" : shard_name(stem, i, plan.shards.size())));
    auto const sink = [&](char const* bytes, std::size_t count) { shard.write(bytes, count); };
    writers[i].write(sink);
    shard.finish();
  }
  std::optional<replacement> new_index;
  if (!one_file) {
    new_index.emplace(files, index_path);
    new_index->write(index.data(), index.size());
    new_index->finish();
  }

  if (old_index) {
    // If no new index replaces it, remove a symbolic link but not its target.
    auto const leaves = one_file ? index_path : *old_index;
    files.remove_file(leaves);
    sync_directory_if_possible(files, leaves.parent_path().empty() ? "." : leaves.parent_path());
  }
  std::set<std::filesystem::path> directories;
  for (auto& shard : written) {
    shard.take_place();
    if (!shard.is_in_place()) directories.insert(shard.directory());
  }
  for (auto const& changed : directories) sync_directory_if_possible(files, changed);
  if (!new_index) return;
  new_index->take_place();
  sync_directory_if_possible(files, new_index->directory());
}

KEEL_BODY safetensors_content load_sharded_safetensors(std::filesystem::path const& index_path) {
  using namespace detail;
  auto const fail = [&](std::string const& what) { throw_damaged_index(index_path, what); };
  file_system files;
  auto const places = read_weight_map(index_path);
  std::map<std::string, std::vector<std::string>> names_of;
  for (auto const& [name, file] : places) names_of[file].push_back(name);
  safetensors_content all;
  for (auto const& [file, names] : names_of) {
    auto const path = index_path.parent_path() / file;
    if (!files.exists(path)) fail("names " + shown_name(file) + ", which does not exist");
    auto content = load_safetensors(path);
    std::unordered_set<c10::TensorImpl const*> placed;
    for (auto const& name : names) {
      auto const found = content.tensors.find(name);
      if (found == content.tensors.end())
        fail("assigns " + shown_name(name) + " to " + shown_name(file) + ", which does not contain it");
      placed.insert(found->second.unsafeGetTensorImpl());
    }
    for (auto const& [name, tensor] : content.tensors) {
      if (!placed.contains(tensor.unsafeGetTensorImpl())) continue;
      auto const place = places.find(name);
      if (place != places.end() && place->second != file) continue;  // belongs to another file according to the index
      if (!all.tensors.emplace(name, tensor).second) fail("names two files that both contain " + shown_name(name));
      auto const dtype = content.as_bytes.find(name);
      if (dtype != content.as_bytes.end()) all.as_bytes.emplace(*dtype);
    }
    for (auto const& [key, value] : content.metadata) all.metadata.emplace(key, value);
  }
  return all;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
