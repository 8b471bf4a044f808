// Finds all damage in a checkpoint. Loading, in contrast, throws at the first.
#pragma once

#include <filesystem>
#include <keel/checkpoint/read_checkpoint.hpp>
#include <keel/core/error.hpp>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Returns a message for each way in which the checkpoint in `directory` differs from its manifest; empty if every byte
/// matches. Throws file_error (E02) if the disk cannot be read.
inline std::vector<std::string> find_damage(std::filesystem::path const& directory, file_system& files = real_files()) {
  std::vector<std::string> found;
  auto const note = [&](auto const& look) {
    try {
      look();
    } catch (checkpoint_error const& thrown) {
      found.push_back(thrown.what());
    }
  };
  manifest all;
  note([&] {
    auto const path = directory / "manifest.json";
    if (!files.exists(path)) detail::throw_damaged_checkpoint(path, "is missing");
    all = parse_manifest(files.read(path), path.string());
  });
  if (!found.empty()) return found;
  note([&] { detail::require_matching_name(directory, all); });
  note([&] { detail::require_complete_slices(directory, all); });
  for (std::string const& name : detail::checkpoint_file_names(all)) {
    note([&] {
      if (!files.exists(directory / name)) detail::throw_damaged_checkpoint(directory / name, "is missing");
      auto const& expected = detail::record_of(all, directory, name.c_str());
      if (expected.header_checksum.empty()) {
        detail::read_state(files, directory, all);
      } else {
        detail::read_tensors(files, directory, name, all);
      }
    });
  }
  return found;
}

}  // namespace keel::inline KEEL_MODE
