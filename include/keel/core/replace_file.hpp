// Replaces the content of a file atomically: writes a temporary file next to it, syncs it and renames it. At any time the name refers to
// either the complete old or the complete new content, and programs that have the old file open or mapped keep it.
//     a symbolic link          is kept; the file that it refers to is replaced
//     a pipe, a device         is written in place, and so is the target of /dev/stdout
//     permissions              of an existing file are kept, and its owner if the process may set it; a new file has 0644 without the
//                              umask's bits
// The disk must temporarily hold both. Left out: preserving hard links of the old file, which requires writing in place.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <keel/core/error.hpp>
#include <keel/core/file_system.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

/// Returns the file behind all links of `name`, which need not exist; nullopt for a file that can only be written in place.
inline std::optional<std::filesystem::path> replaceable_file(std::filesystem::path name) {
  namespace fs = std::filesystem;
  std::error_code code;
  auto const status = fs::status(name, code);
  if (fs::exists(status) && !fs::is_regular_file(status)) return std::nullopt;
  // For circular links, opening the file reports the error.
  constexpr int max_links = 40;
  for (int links = 0; links < max_links; ++links) {
    if (!fs::is_symlink(fs::symlink_status(name, code))) return name;
    // A link in /proc refers to an open file, which other programs may write as well; its text is not a stable path.
    auto const directory = name.parent_path();
    auto const real = fs::canonical(directory.empty() ? "." : directory, code);
    if (code || real.native().starts_with("/proc/")) return std::nullopt;
    auto const next = fs::read_symlink(name, code);
    if (code) return std::nullopt;
    name = directory / next;
  }
  return std::nullopt;
}

/// A temporary file, which is removed on destruction.
class temporary_name {
 public:
  temporary_name() = default;
  temporary_name(temporary_name const&) = delete;
  temporary_name& operator=(temporary_name const&) = delete;
  ~temporary_name() {
    std::error_code ignored;  // the error that made the save fail is already being thrown
    if (!path_.empty()) std::filesystem::remove(path_, ignored);
  }

  std::filesystem::path const& path() const { return path_; }
  void set(std::filesystem::path path) { path_ = std::move(path); }
  void forget() { path_.clear(); }

 private:
  std::filesystem::path path_;
};

/// The new content of a file. Use: construct, write, finish, take_place. Until take_place, an exception leaves everything unchanged, except
/// for files that are written in place.
class replacement {
 public:
  /// Throws file_error (E02), as do all members.
  replacement(file_system& files, std::filesystem::path const& name) : files_(files), target_(name) {
    auto const target = replaceable_file(name);
    in_place_ = !target;
    if (in_place_) {
      file_ = files_.create_in_place(target_);
      return;
    }
    target_ = *target;
    make_beside();
    keep_owner_and_permissions();
  }

  void write(char const* bytes, std::size_t count) { files_.write(file_, target_, bytes, count); }

  /// Syncs the file, which may be the first call to detect a full disk. Closes it, because a set of files may exceed the limit of open
  /// files.
  void finish() {
    files_.sync(file_, target_);
    file_ = file_handle();
  }

  void take_place() {
    if (in_place_) return;
    files_.rename(beside_.path(), target_);
    beside_.forget();
  }

  bool is_in_place() const { return in_place_; }
  /// Returns the directory of the target.
  std::filesystem::path directory() const { return target_.parent_path().empty() ? "." : target_.parent_path(); }

 private:
  void make_beside() {
    // Does not contain the target's name, which may already have the maximum length.
    static std::atomic<std::uint64_t> count{0};
    for (int attempt = 0;; ++attempt) {
      auto const path = directory() / (".keel-save-" + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".tmp");
      try {
        file_ = files_.create_new(path);
        beside_.set(path);
        return;
      } catch (file_error const&) {
        // Left by a killed process with the same process id; in a container ids repeat in every run.
        constexpr int most_attempts = 1000;
        if (attempt == most_attempts || !files_.exists(path)) throw;
      }
    }
  }

  /// Called before the first byte is written, because the content may be confidential.
  void keep_owner_and_permissions() {
    struct stat older{};
    struct stat newer{};
    if (::stat(target_.c_str(), &older) != 0 || ::fstat(file_.get(), &newer) != 0) return;
    mode_t bits = older.st_mode & 0777;
    if (older.st_uid != newer.st_uid || older.st_gid != newer.st_gid) {
      // Only root may change the owner. For others the new file belongs to them, and its group can only be one of theirs. If the group
      // could not be kept, the new group gets none of the old group's permissions.
      bool const is_owned = ::fchown(file_.get(), older.st_uid, older.st_gid) == 0 ||
                            ::fchown(file_.get(), static_cast<uid_t>(-1), older.st_gid) == 0;
      if (!is_owned && older.st_gid != newer.st_gid) bits &= ~static_cast<mode_t>(070);
    }
    if (bits == (newer.st_mode & 0777)) return;
    if (::fchmod(file_.get(), bits) != 0) throw_file_error("keep the permissions of", target_, errno);
  }

  file_system& files_;
  std::filesystem::path target_;
  temporary_name beside_;
  file_handle file_;
  bool in_place_;
};

/// Makes renames in `directory` durable if its file system can. Ignores that it cannot, because the save is complete anyway.
inline void sync_directory_if_possible(file_system& files, std::filesystem::path const& directory) {
  static_cast<void>(files.sync_directory(directory));
}

/// Replaces a file. Calls `write(sink)`, which calls `sink(char const* bytes, std::size_t count)` in the order of the file.
template <class Write>
void replace_file(file_system& files, std::filesystem::path const& name, Write const& write) {
  replacement file(files, name);
  auto const sink = [&](char const* bytes, std::size_t count) { file.write(bytes, count); };
  write(sink);
  file.finish();
  file.take_place();
  if (!file.is_in_place()) sync_directory_if_possible(files, file.directory());
}

}  // namespace keel::detail::inline KEEL_MODE
