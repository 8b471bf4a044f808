// Removes a directory that keel created, and in it only the files that keel writes, by name. Other files are kept. If the directory was
// replaced by a link, only the link is removed.
#pragma once

#include <filesystem>
#include <keel/core/file_system.hpp>
#include <string>
#include <string_view>

namespace keel::detail::inline KEEL_MODE {

/// Removes the files of `directory` for which `is_own(name)` is true, then the file `last`, then the directory. If it contains anything
/// else, renames it to the first free kept-NAME or kept-NAME-N next to it, where NAME is `name`, and returns a message. Returns an empty
/// string if everything was removed, or if there was nothing. Throws file_error (E02).
template <class IsOwn>
std::string remove_directory_of(file_system& files, std::filesystem::path const& directory, std::string const& name,
                                IsOwn const& is_own, std::string_view last) {
  file_kind const kind = files.kind(directory);
  if (kind == file_kind::none) return {};
  if (kind != file_kind::directory) return files.remove_file(directory), std::string();
  std::string unknown;
  for (std::filesystem::path const& file : files.list(directory)) {
    std::string const entry = file.filename().string();
    file_kind const of_file = files.kind(file);
    // Another rank that is still writing has renamed it.
    if (of_file == file_kind::none) continue;
    if (of_file != file_kind::file || !(entry == last || is_own(entry))) {
      unknown = entry;
    } else if (entry != last) {
      files.remove_file(file);
    }
  }
  if (files.kind(directory / last) == file_kind::file) files.remove_file(directory / last);
  if (files.remove_directory(directory)) return {};
  // A network file system keeps files that another process has open under temporary names; the next removal tries again.
  if (unknown.empty()) return {};
  std::filesystem::path const parent = directory.parent_path();
  std::filesystem::path free = parent / ("kept-" + name);
  for (int again = 2; files.kind(free) != file_kind::none; ++again)
    free = parent / ("kept-" + name + "-" + std::to_string(again));
  files.rename(directory, free);
  return name + " contained " + unknown + ", which keel did not write: it was moved to " + free.string();
}

}  // namespace keel::detail::inline KEEL_MODE
