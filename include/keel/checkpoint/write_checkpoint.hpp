// Writes the files of a checkpoint into an empty directory and syncs them. Every byte is checked and summed once, on its way
// from memory to the disk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <keel/checkpoint/checksum.hpp>
#include <keel/checkpoint/manifest.hpp>
#include <keel/checkpoint/safetensors_writer.hpp>
#include <keel/checkpoint/snapshot.hpp>
#include <keel/core/error.hpp>
#include <keel/core/file_system.hpp>
#include <keel/core/finite_bytes.hpp>
#include <keel/rule/checkpoint.hpp>
#include <keel/rule/nonfinite.hpp>
#include <string>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

class checkpoint_file {
 public:
  checkpoint_file(file_system& files, std::filesystem::path path)
      : files_(files), path_(std::move(path)), file_(files_.create(path_)) {}

  void write(char const* bytes, std::size_t count) {
    files_.write(file_, path_, bytes, count);
    sum_.add(bytes, count);
    record_.bytes += count;
    constexpr std::uint64_t much = 8 << 20;
    if (record_.bytes - written_back_ < much) return;
    files_.begin_writing_back(file_, written_back_, record_.bytes - written_back_);
    written_back_ = record_.bytes;
  }
  /// Syncs the file and returns its record.
  file_record finish() {
    files_.sync(file_, path_);
    record_.checksum = sum_.digest();
    return std::move(record_);
  }
  file_record& record() { return record_; }

 private:
  file_system& files_;
  std::filesystem::path path_;
  file_handle file_;
  checksum sum_;
  std::uint64_t written_back_ = 0;  ///< bytes whose write-back to the disk has started
  file_record record_;
};

/// Throws nonfinite_error (N13) if a tensor named in `finite`, which is sorted, is not finite.
inline file_record write_tensors(file_system& files, std::filesystem::path const& path, tensor_map const& tensors,
                                 slice_map const& slices, std::vector<std::string> const& finite = {}) {
  for (auto const& [name, slice] : slices) {
    at::Tensor const& values = tensors.at(name);
    if (values.dim() != 1 || values.numel() != slice.count)
      throw data_error("E05", "the slice of " + shown_name(name) + " has another length than its range");
  }
  safetensors_writer const writer(tensors, {});
  checkpoint_file file(files, path);
  file.write(writer.header().data(), writer.header().size());
  file.record().header_checksum = checksum_of(writer.header());
  file.record().slices = slices;
  for (auto const& entry : writer.entries()) {
    auto const values = writer.values_of(entry);
    bool const must_be_finite = std::binary_search(finite.begin(), finite.end(), entry.name);
    auto const* const bytes = static_cast<char const*>(values.data_ptr());
    std::uint64_t const count = entry.end - entry.begin;
    // Processed in blocks that stay in the cache for the check, the checksum and the write.
    constexpr std::uint64_t block = 256 << 10;
    checksum sum;
    for (std::uint64_t at = 0; at < count; at += block) {
      auto const length = static_cast<std::size_t>(std::min(block, count - at));
      if (must_be_finite && !is_finite(bytes + at, length, values.scalar_type()))
        throw broken_rule<nonfinite_error, rule::N13>(entry.name + " is not finite");
      sum.add(bytes + at, length);
      file.write(bytes + at, length);
    }
    file.record().tensor_checksums.emplace(entry.name, sum.digest());
  }
  return file.finish();
}

inline file_record write_text(file_system& files, std::filesystem::path const& path, std::string const& text) {
  checkpoint_file file(files, path);
  file.write(text.data(), text.size());
  return file.finish();
}

/// Formats the state as JSON text. Throws data_error (E05) for a string that is not UTF-8.
inline std::string text_of(nlohmann::json const& state) {
  try {
    return state.dump(2) + "\n";
  } catch (nlohmann::json::type_error const& thrown) {
    throw data_error("E05", std::string("a string in the state of the run is not UTF-8 and cannot be saved (") + thrown.what() +
                                "). Check the states that the program registers.");
  }
}

/// Writes the files of `content` into `directory` and adds them to the manifest `all`.
inline void write_files(file_system& files, std::filesystem::path const& directory, snapshot const& content, manifest& all) {
  all.generation = content.generation;
  all.run = content.run;
  all.attempt = content.attempt;
  all.best = content.best;
  auto const text = [&](char const* field) {
    return content.state.contains(field) && content.state[field].is_string() ? content.state[field].template get<std::string>()
                                                                             : std::string();
  };
  all.keel = text("keel");
  all.libtorch = text("libtorch");
  if (content.state.contains("recipe")) all.recipe = content.state["recipe"];
  std::vector<std::string> finite = content.finite;
  std::sort(finite.begin(), finite.end());
  all.files["model.safetensors"] =
      write_tensors(files, directory / "model.safetensors", content.model, content.model_slices, finite);
  all.files["optimizer.safetensors"] =
      write_tensors(files, directory / "optimizer.safetensors", content.optimizer, content.optimizer_slices);
  all.files["state.safetensors"] =
      write_tensors(files, directory / "state.safetensors", content.tensors, content.tensor_slices);
  all.files["state.json"] = write_text(files, directory / "state.json", text_of(content.state));
}

/// Writes the manifest, the last file. Returns the total size of all files in bytes.
inline std::uint64_t write_manifest(file_system& files, std::filesystem::path const& directory, manifest const& all) {
  std::string const text = manifest_text(all);
  if (text.size() > file_system::longest_text)
    throw file_error("E02", (directory / "manifest.json").string() + " would have " + std::to_string(text.size()) +
                                " bytes, more than keel reads. Save on fewer ranks.");
  std::uint64_t bytes = write_text(files, directory / "manifest.json", text).bytes;
  for (auto const& [name, record] : all.files) bytes += record.bytes;
  files.sync_directory(directory);
  return bytes;
}

/// Writes all files of `content` into `directory`, the manifest last, and syncs it. Returns their total size in bytes.
inline std::uint64_t write_checkpoint(file_system& files, std::filesystem::path const& directory, std::int64_t update,
                                      bool requested, snapshot const& content) {
  manifest all;
  all.update = update;
  all.requested = requested;
  write_files(files, directory, content, all);
  return write_manifest(files, directory, all);
}

}  // namespace keel::detail::inline KEEL_MODE
