// Reads a checkpoint directory and verifies every byte against its manifest.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <keel/checkpoint/checksum.hpp>
#include <keel/checkpoint/manifest.hpp>
#include <keel/checkpoint/open_safetensors.hpp>
#include <keel/checkpoint/safetensors_reader.hpp>
#include <keel/checkpoint/snapshot.hpp>
#include <keel/checkpoint/tensor_slice.hpp>
#include <keel/core/error.hpp>
#include <keel/core/file_system.hpp>
#include <keel/json/text.hpp>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

[[noreturn]] inline void throw_damaged_checkpoint(std::filesystem::path const& path, std::string const& what) {
  throw checkpoint_error("E05", path.string() + " " + what + ". Use an older checkpoint, and check the disk.");
}

inline file_record const& record_of(manifest const& all, std::filesystem::path const& directory, char const* name) {
  auto const found = all.files.find(name);
  if (found == all.files.end()) throw_damaged_checkpoint(directory / "manifest.json", std::string("does not list ") + name);
  return found->second;
}

/// Throws checkpoint_error (E05) if the directory's name contains `step-` with the number of another update.
inline void require_matching_name(std::filesystem::path const& directory, manifest const& all) {
  std::string const name = (directory.has_filename() ? directory : directory.parent_path()).filename().string();
  std::size_t const begin = name.rfind("step-");
  if (begin == std::string::npos) return;
  std::size_t const digits = begin + 5;
  std::size_t const end = std::min(name.find_first_not_of("0123456789", digits), name.size());
  char expected[32];
  int const length = std::snprintf(expected, sizeof expected, "%09lld", static_cast<long long>(all.update));
  if (end - digits < 9 || name.compare(digits, end - digits, expected, static_cast<std::size_t>(length)) == 0) return;
  throw_damaged_checkpoint(directory,
                           "contains update " + std::to_string(all.update) + ": it was renamed from step-" + expected);
}

inline std::uint64_t verify_size(file_system& files, std::filesystem::path const& path, file_record const& expected) {
  std::uint64_t const size = files.size(path);
  if (size != expected.bytes)
    throw_damaged_checkpoint(path, "is corrupted: it has " + std::to_string(size) + " bytes, but manifest.json lists " +
                                       std::to_string(expected.bytes));
  return size;
}

/// Verifies the checksum of each tensor as it is read.
struct tensor_checksum_verifier {
  static constexpr bool wanted = true;
  file_record const& expected;
  std::filesystem::path const& path;
  void operator()(safetensors_entry const& entry, std::string const& sum) const {
    auto const found = expected.tensor_checksums.find(entry.name);
    if (found == expected.tensor_checksums.end() || found->second != sum)
      throw_damaged_checkpoint(path, "is corrupted: the checksum of " + shown_name(entry.name) + " differs from manifest.json");
  }
};

/// Throws checkpoint_error (E05) unless the file contains the slices that the manifest lists.
inline void require_slices(safetensors_header const& header, file_record const& expected, std::filesystem::path const& path) {
  std::set<std::string> found;
  for (safetensors_entry const& entry : header.entries) {
    auto const slice = expected.slices.find(entry.name);
    if (slice != expected.slices.end() && entry.shape == std::vector<std::int64_t>{slice->second.count})
      found.insert(entry.name);
  }
  for (auto const& [name, slice] : expected.slices) {
    auto const alias = header.metadata.find(std::string(safetensors_alias) + name);
    if (found.count(name) == 0 && (alias == header.metadata.end() || found.count(alias->second) == 0))
      throw_damaged_checkpoint(path, "does not contain the slice of " + shown_name(name) + " that manifest.json lists");
  }
}

inline tensor_map read_tensors(file_system& files, std::filesystem::path const& directory, std::string const& name,
                               manifest const& all) {
  auto const path = directory / name;
  auto const& expected = record_of(all, directory, name.c_str());
  std::uint64_t const size = verify_size(files, path, expected);
  auto const file = files.open_for_read(path);
  auto opened = open_safetensors(files, file, path, size);
  if (checksum_of(opened.text) != expected.header_checksum)
    throw_damaged_checkpoint(path, "is corrupted: the checksum of its header differs from manifest.json");
  require_slices(opened.header, expected, path);
  auto const read_at = [&](char* to, std::size_t count, std::uint64_t offset) {
    if (files.read_at(file, path, to, count, opened.data_begin + offset) != count)
      throw_damaged_checkpoint(path, "was truncated while it was read");
  };
  return read_safetensors_data(std::move(opened.header), path.string(), read_at, tensor_checksum_verifier{expected, path})
      .tensors;
}

inline nlohmann::json read_state(file_system& files, std::filesystem::path const& directory, manifest const& all) {
  auto const path = directory / "state.json";
  auto const& expected = record_of(all, directory, "state.json");
  verify_size(files, path, expected);
  std::string const text = files.read(path, std::max(file_system::longest_text, expected.bytes));
  if (text.size() != expected.bytes || checksum_of(text) != expected.checksum)
    throw_damaged_checkpoint(path, "is corrupted: its checksum differs from manifest.json");
  try {
    return parse_json(text);
  } catch (json_text_error const& thrown) {
    throw_damaged_checkpoint(path, std::string("cannot be used (") + thrown.what() + ")");
  }
}

inline constexpr char const* checkpoint_files[] = {"model.safetensors", "optimizer.safetensors", "state.safetensors",
                                                   "state.json"};

/// Returns the names of a checkpoint's files: the common ones and those of ranks above 0.
inline std::vector<std::string> checkpoint_file_names(manifest const& all) {
  std::vector<std::string> names(std::begin(checkpoint_files), std::end(checkpoint_files));
  for (auto const& [name, record] : all.files) {
    if (parse_rank_of_file(name) > 0) names.push_back(name);
  }
  return names;
}

/// Returns the names of the files with the tensors of this content: "model", "optimizer" or "state".
inline std::vector<std::string> tensor_file_names(manifest const& all, std::string const& content) {
  std::vector<std::string> names = checkpoint_file_names(all);
  std::erase_if(names, [&](std::string const& name) { return content_of_file(name) != content || name.ends_with(".json"); });
  return names;
}

/// The prefix of the state tensors of a rank above 0 in a snapshot.
inline std::string rank_prefix(int rank) { return "ranks/" + std::to_string(rank) + "/"; }

/// A slice that was read, and its values.
struct slice_values {
  tensor_slice slice;
  at::Tensor values;
};
using slices_of_tensors = std::map<std::string, std::vector<slice_values>>;

/// Adds the tensors of a file, with `prefix` before their names, and its slices.
inline void read_tensors_into(tensor_map& to, slices_of_tensors& slices, file_system& files,
                              std::filesystem::path const& directory, std::string const& name, manifest const& all,
                              std::string const& prefix) {
  auto const& record = record_of(all, directory, name.c_str());
  for (auto& [tensor, values] : read_tensors(files, directory, name, all)) {
    if (auto const slice = record.slices.find(tensor); slice != record.slices.end()) {
      slices[tensor].push_back({slice->second, std::move(values)});
    } else if (!to.emplace(prefix + tensor, std::move(values)).second) {
      throw_damaged_checkpoint(directory / name,
                               "contains " + shown_name(tensor) + ", which another file of the checkpoint contains too");
    }
  }
}

/// Joins slices that contain each element of a tensor once, in host memory.
inline at::Tensor join_slices(std::vector<slice_values> const& parts) {
  tensor_slice const& like = parts.front().slice;
  at::Tensor whole =
      at::empty_strided(like.sizes, like.strides, parts.front().values.options().device(at::kCPU).requires_grad(false));
  at::Tensor const flat = whole.as_strided({whole.numel()}, {1}, 0);
  for (auto const& [slice, values] : parts) flat.narrow(0, slice.begin, slice.count).copy_(values);
  return whole;
}

/// Joins the slices of each tensor and adds it. Names that share their slices share the tensor.
inline void join_all_slices(tensor_map& to, slices_of_tensors slices, std::filesystem::path const& directory) {
  at::NoGradGuard const no_grad;
  std::map<std::vector<c10::TensorImpl const*>, std::vector<std::string>> names_of;
  for (auto& [name, parts] : slices) {
    std::sort(parts.begin(), parts.end(), [](auto const& a, auto const& b) { return a.slice.begin < b.slice.begin; });
    std::vector<c10::TensorImpl const*> handles;
    for (auto const& [slice, values] : parts) {
      handles.push_back(values.unsafeGetTensorImpl());
      if (values.scalar_type() != parts.front().values.scalar_type())
        throw_damaged_checkpoint(directory, "cannot be read: the slices of " + shown_name(name) + " have different dtypes");
    }
    names_of[handles].push_back(name);
  }
  for (auto const& [handles, names] : names_of) {
    at::Tensor const whole = join_slices(slices.at(names.front()));
    for (std::string const& name : names) {
      if (!to.emplace(name, whole).second)
        throw_damaged_checkpoint(directory, "cannot be read: it contains " + shown_name(name) + " whole and in slices");
      // Before the next one is joined, so that no more than one tensor is in memory twice.
      slices.at(name).clear();
    }
  }
}

/// Reads the tensors of all files with this content, "model", "optimizer" or "state". State tensors of a rank above 0 get its rank_prefix.
inline tensor_map read_content(file_system& files, std::filesystem::path const& directory, manifest const& all,
                               std::string const& content) {
  tensor_map tensors;
  slices_of_tensors slices;
  for (std::string const& name : tensor_file_names(all, content)) {
    int const rank = parse_rank_of_file(name);
    read_tensors_into(tensors, slices, files, directory, name, all,
                      rank > 0 && content == "state" ? rank_prefix(rank) : std::string());
  }
  join_all_slices(tensors, std::move(slices), directory);
  return tensors;
}

/// Calls `fail(name, what is wrong)` for a tensor of which the slices in the manifest do not contain each element once.
template <class Fail>
void check_slices(manifest const& all, Fail const& fail) {
  std::map<std::string, std::vector<tensor_slice>> slices;
  for (auto const& [name, record] : all.files) {
    for (auto const& [tensor, slice] : record.slices) {
      std::string const shown = shown_name(tensor) + " (" + content_of_file(name) + ")";
      // Limits the memory that an invalid manifest can request: the size of the file is verified before the slice is read.
      if (slice.count > 0 && static_cast<std::uint64_t>(slice.count) > record.bytes)
        fail(shown, "has a slice that is larger than its file");
      slices[shown].push_back(slice);
    }
  }
  for (auto const& [shown, parts] : slices) {
    if (std::string const wrong = find_slice_error(parts); !wrong.empty()) fail(shown, wrong);
  }
}

/// Throws checkpoint_error (E05) for such a tensor.
inline void require_complete_slices(std::filesystem::path const& directory, manifest const& all) {
  check_slices(all, [&](std::string const& name, std::string const& wrong) {
    throw_damaged_checkpoint(directory / "manifest.json", "is not complete: the tensor " + name + " " + wrong);
  });
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Reads the manifest of the checkpoint in `directory`. Throws checkpoint_error (E05) if it or one of the files is missing.
inline manifest read_manifest(std::filesystem::path const& directory, file_system& files = real_files()) {
  auto const require = [&](char const* name) {
    if (!files.exists(directory / name)) detail::throw_damaged_checkpoint(directory / name, "is missing");
  };
  require("manifest.json");
  for (char const* const name : detail::checkpoint_files) require(name);
  manifest all = parse_manifest(files.read(directory / "manifest.json"), (directory / "manifest.json").string());
  for (std::string const& name : detail::checkpoint_file_names(all)) require(name.c_str());
  detail::require_complete_slices(directory, all);
  return all;
}

/// Reads the checkpoint in `directory` and verifies every byte against its manifest. Throws checkpoint_error (E05) with the
/// first difference.
inline snapshot read_checkpoint(std::filesystem::path const& directory, file_system& files = real_files()) {
  manifest const all = read_manifest(directory, files);
  snapshot content;
  content.run = all.run;
  content.state = detail::read_state(files, directory, all);
  content.model = detail::read_content(files, directory, all, "model");
  content.optimizer = detail::read_content(files, directory, all, "optimizer");
  content.tensors = detail::read_content(files, directory, all, "state");
  return content;
}

}  // namespace keel::inline KEEL_MODE
