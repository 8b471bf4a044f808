// A directory that keel made goes: only what keel writes into it, by name. What else a person put there stays, and where a link was put
// in its place, the link goes and what it leads to stays.
#pragma once

#include <filesystem>
#include <keel/core/file_system.hpp>
#include <string>
#include <string_view>

namespace keel::detail::inline KEEL_MODE {

/// Removes those files of `directory` whose name `is_own(name)` is true of, `last` after the others, and the directory. Returns a sentence
/// where something else is in it, by `name`: that stays beside it, under the first free kept-NAME or kept-NAME-N. Empty: all went, or
/// nothing was there. Throws file_error (E02).
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
    // Another rank that still writes has renamed it.
    if (of_file == file_kind::none) continue;
    if (of_file != file_kind::file || !(entry == last || is_own(entry))) {
      unknown = entry;
    } else if (entry != last) {
      files.remove_file(file);
    }
  }
  if (files.kind(directory / last) == file_kind::file) files.remove_file(directory / last);
  if (files.remove_directory(directory)) return {};
  // A network's file system keeps what another process has open under a name of its choice: the next removal tries again.
  if (unknown.empty()) return {};
  std::filesystem::path const parent = directory.parent_path();
  std::filesystem::path free = parent / ("kept-" + name);
  for (int again = 2; files.kind(free) != file_kind::none; ++again)
    free = parent / ("kept-" + name + "-" + std::to_string(again));
  files.rename(directory, free);
  return name + " held " + unknown + ", which keel did not write: it stays in " + free.string();
}

}  // namespace keel::detail::inline KEEL_MODE
