// One tensor, some rows of one, or names and shapes alone out of a safetensors file: opening it reads the header, and each call
// what it asks for. For files that do not fit into memory, and for looking into one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <keel/checkpoint/safetensors_header.hpp>
#include <keel/core/file_system.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Several threads may read from one. The file stays open, so that one which takes its place later changes nothing here.
class safetensors_file {
 public:
  /// Throws checkpoint_error (E05) for a file that is not a whole safetensors file, file_error (E02).
  explicit safetensors_file(std::filesystem::path const& path);

  /// Sorted; of a tensor with several, all.
  std::vector<std::string> names() const;
  /// Without the aliases.
  string_map const& metadata() const { return metadata_; }

  /// In elements, as the file says it. Throws checkpoint_error (E04) for a name that the file does not hold, as do all that
  /// take one.
  std::vector<std::int64_t> const& shape(std::string const& name) const { return entry(name).shape; }
  /// The format's word, such as BF16.
  std::string_view dtype(std::string const& name) const { return safetensors_dtypes[entry(name).dtype].name; }

  /// On the CPU, contiguous, and read again by every call; as bytes where load_safetensors gives bytes. Throws checkpoint_error
  /// (E05) for a file that became shorter and for a bool other than 0 and 1, out_of_memory_error (E09), file_error (E02).
  at::Tensor tensor(std::string const& name) const { return read(entry(name)); }

  /// The slice [begin, end) of the first dimension. Throws error (E12) for rows that are not there, or that packed elements do
  /// not begin or end at whole bytes, and what tensor() throws.
  at::Tensor rows(std::string const& name, std::int64_t begin, std::int64_t end) const;

 private:
  safetensors_entry const& entry(std::string const& name) const;

  at::Tensor read(safetensors_entry const& part) const;

  [[noreturn]] void throw_unknown_name(std::string const& name) const;

  std::filesystem::path path_;
  file_handle file_;
  std::vector<safetensors_entry> entries_;
  std::map<std::string, std::size_t> entry_of_;  ///< aliases, too
  string_map metadata_;
  std::uint64_t data_begin_ = 0;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/checkpoint/safetensors_file.ipp>
#endif
