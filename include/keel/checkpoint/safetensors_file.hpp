// Random access to a safetensors file: names, shapes, single tensors or some of their rows. Opening reads only the header. For
// files that do not fit into memory, and for inspection.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <keel/checkpoint/safetensors_header.hpp>
#include <keel/checkpoint/safetensors_scalar_types.hpp>
#include <keel/core/file_system.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace keel::inline KEEL_MODE {

/// An open safetensors file. Reads from several threads are safe. The file stays open, so replacing it on disk has no effect
/// here.
class safetensors_file {
 public:
  /// Opens a file and reads its header. Throws checkpoint_error (E05) if it is not a complete safetensors file, and file_error
  /// (E02).
  explicit safetensors_file(std::filesystem::path const& path);

  /// Returns all names in sorted order, aliases included.
  std::vector<std::string> names() const;
  /// Returns the metadata without the alias entries.
  string_map const& metadata() const { return metadata_; }

  /// Returns the shape in elements, as stored in the header. Throws checkpoint_error (E04) for an unknown name, as all
  /// functions with a name do.
  std::vector<std::int64_t> const& shape(std::string const& name) const { return entry(name).shape; }
  /// Returns the dtype's name in the format, such as BF16.
  std::string_view dtype(std::string const& name) const { return safetensors_dtypes[entry(name).dtype].name; }

  /// True if both are names of one stored tensor.
  bool is_same_tensor(std::string const& name, std::string const& other) const { return &entry(name) == &entry(other); }

  /// Returns the type and sizes that tensor() has.
  detail::tensor_form form(std::string const& name) const { return detail::form_of(entry(name), path_.string()); }

  /// Reads a tensor into contiguous CPU memory, on every call. Returns bytes for the types for which load_safetensors does.
  /// Throws checkpoint_error (E05) for a truncated file and for a bool other than 0 and 1. Throws out_of_memory_error (E09) and
  /// file_error (E02).
  at::Tensor tensor(std::string const& name) const { return read(entry(name)); }

  /// Reads rows [begin, end) of the first dimension. Throws error (E12) for rows out of range, and for rows of packed elements
  /// that are not byte-aligned. Throws also what tensor() throws.
  at::Tensor rows(std::string const& name, std::int64_t begin, std::int64_t end) const;

 private:
  safetensors_entry const& entry(std::string const& name) const;

  at::Tensor read(safetensors_entry const& part) const;

  [[noreturn]] void throw_unknown_name(std::string const& name) const;

  std::filesystem::path path_;
  file_handle file_;
  std::vector<safetensors_entry> entries_;
  std::map<std::string, std::size_t> entry_of_;  ///< includes aliases
  string_map metadata_;
  std::uint64_t data_begin_ = 0;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/checkpoint/safetensors_file.ipp>
#endif
