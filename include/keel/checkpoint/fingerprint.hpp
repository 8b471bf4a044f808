// Fingerprints of a run's inputs, as 16 hexadecimal digits, for trainer_options::fingerprints. A resume with another vocabulary
// or other data is then an error, and keel::compare_runs names the difference. Uses XXH3, which detects changes but is not
// cryptographic.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <keel/checkpoint/checksum.hpp>
#include <keel/core/file_system.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Returns the fingerprint of a byte sequence.
inline std::string fingerprint_of(std::string_view bytes) { return checksum_of(bytes); }

/// Returns the fingerprint of a vocabulary: its words in order.
inline std::string fingerprint_of(std::vector<std::string> const& words) {
  checksum all;
  for (std::string const& word : words) {
    std::string const length = std::to_string(word.size()) + ":";
    all.add(length.data(), length.size());
    all.add(word.data(), word.size());
  }
  return all.digest();
}

/// Returns the fingerprint of a tensor's dtype, shape and values. Copies the tensor to the CPU.
inline std::string fingerprint_of(at::Tensor const& values) {
  checksum all;
  std::string const words = c10::str(values.scalar_type(), values.sizes());
  all.add(words.data(), words.size());
  at::Tensor const dense = values.detach().cpu().contiguous();
  all.add(static_cast<char const*>(dense.data_ptr()), dense.nbytes());
  return all.digest();
}

/// Returns the fingerprint of a file's bytes. Reads 1 MiB at a time. Throws file_error (E02) if the file cannot be read.
inline std::string fingerprint_of_file(std::filesystem::path const& path) {
  file_system files;
  file_handle const file = files.open_for_read(path);
  std::vector<char> piece(std::size_t{1} << 20);
  checksum all;
  for (std::uint64_t at = 0;;) {
    std::size_t const count = files.read_at(file, path, piece.data(), piece.size(), at);
    if (count == 0) return all.digest();
    all.add(piece.data(), count);
    at += count;
  }
}

}  // namespace keel::inline KEEL_MODE
