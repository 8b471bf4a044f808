// A tensor map in several safetensors files of bounded size, as the Hugging Face libraries write and read them:
//     model-00001-of-00003.safetensors ..     and     model.safetensors.index.json {metadata: {total_size}, weight_map}
// One that fits into a single file becomes model.safetensors without an index.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <keel/checkpoint/files.hpp>
#include <keel/checkpoint/safetensors.hpp>
#include <keel/error.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace keel {

/// Writes `tensors` into `directory` under the name `stem`, each file with at most `most_bytes` of data, or with one tensor.
/// The index comes last, so that a crash leaves no index of files that are not there. Throws data_error (E05) for what cannot
/// be saved, error (E12) for a size below 1, file_error (E02).
inline void save_sharded_safetensors(std::filesystem::path const& directory, std::string const& stem, tensor_map const& tensors,
                                     std::uint64_t most_bytes, string_map const& metadata = {}) {
  if (most_bytes < 1)
    throw error("E12", "a file of at most 0 bytes holds no tensor. Give save_sharded_safetensors a size such as 5 GB.");
  // An index of an older set must not lead into a mixture of both.
  posix_files files;
  auto const path = directory / (stem + ".safetensors.index.json");
  if (files.exists(path)) {
    files.remove_all(path);
    files.sync_directory(directory.empty() ? "." : directory);
  }
  // Names of one tensor stay together, because an alias points into its own file.
  std::map<detail::safetensors_writer::identity, std::size_t> shard_of;
  std::vector<tensor_map> shards(1);
  std::vector<std::string> aliases;
  std::uint64_t held = 0;
  std::uint64_t total = 0;
  for (auto const& [name, tensor] : tensors) {
    bool const has_memory = tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage();
    if (has_memory) {
      auto const known = shard_of.find(detail::safetensors_writer::identity_of(tensor));
      if (known != shard_of.end()) {
        shards[known->second].emplace(name, tensor);
        aliases.push_back(name);
        continue;
      }
    }
    std::uint64_t const bytes = has_memory ? tensor.nbytes() : 0;
    if (held > 0 && held + bytes > most_bytes) {
      shards.emplace_back();
      held = 0;
    }
    held += bytes;
    total += bytes;
    shards.back().emplace(name, tensor);
    if (has_memory) shard_of.emplace(detail::safetensors_writer::identity_of(tensor), shards.size() - 1);
  }
  if (shards.size() == 1) return save_safetensors(directory / (stem + ".safetensors"), tensors, metadata);

  nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", nlohmann::json::object()}};
  for (std::size_t i = 0; i < shards.size(); ++i) {
    char number[32];
    std::snprintf(number, sizeof number, "-%05zu-of-%05zu", i + 1, shards.size());
    std::string const file = stem + number + ".safetensors";
    save_safetensors(directory / file, shards[i], metadata);
    // Other readers look for each of them in the file, which holds an alias in its metadata only.
    for (auto const& [name, tensor] : shards[i]) {
      if (std::find(aliases.begin(), aliases.end(), name) == aliases.end()) index["weight_map"][name] = file;
    }
  }
  auto const file = files.create(path);
  std::string const text = index.dump(2) + "\n";
  files.write(file, path, text.data(), text.size());
  files.sync(file, path);
  files.sync_directory(directory.empty() ? "." : directory);
}

/// All tensors that the index names, from the files beside it. Throws checkpoint_error (E05) for an index or a file that is
/// damaged or does not fit the other, file_error (E02).
inline safetensors_content load_sharded_safetensors(std::filesystem::path const& index_path) {
  auto const fail = [&](std::string const& what) {
    throw checkpoint_error("E05",
                           index_path.string() + " " + what + ". Take an older checkpoint, or fetch all of its files again.");
  };
  posix_files files;
  nlohmann::json const index = nlohmann::json::parse(files.read(index_path), nullptr, false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    fail("is no index with a weight_map");
  std::map<std::string, std::vector<std::string>> names_of;
  for (auto const& [name, file] : index["weight_map"].items()) {
    if (!file.is_string()) fail("names no file for " + detail::shown_name(name));
    auto const words = file.get<std::string>();
    // An index must not lead out of its folder.
    if (words.empty() || words.find('/') != std::string::npos || words == "." || words == "..")
      fail("names the file " + detail::shown_name(words));
    names_of[words].push_back(name);
  }
  safetensors_content all;
  for (auto const& [file, names] : names_of) {
    auto const path = index_path.parent_path() / file;
    if (!files.exists(path)) fail("names " + file + ", which is not there");
    auto content = load_safetensors(path);
    for (auto const& name : names) {
      auto const found = content.tensors.find(name);
      if (found == content.tensors.end())
        fail("places " + detail::shown_name(name) + " in " + file + ", which does not hold it");
      all.tensors.insert(*found);
      for (auto const& alias : content.tensors) {
        if (alias.second.is_same(found->second)) all.tensors.insert(alias);
      }
    }
    for (auto const& [key, value] : content.metadata) all.metadata.emplace(key, value);
  }
  return all;
}

}  // namespace keel
