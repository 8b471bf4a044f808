// A file's content replaced as a whole: written beside it under another name, synced, and moved into its place. At every moment
// the name holds all of the older bytes or all of the newer ones, and whoever has the older file open or mapped keeps it.
//     a symbolic link          stays, and the file that it leads to is replaced
//     a pipe, a device         is written in place, and so is what /dev/stdout stands for
//     permissions              of an older file are kept, and its owner where the process may set it; a new one has 0644
//     without
//                              the umask's bits
// The disk has to hold both for a while. Left out: hard links of the older file, which only writing in place could keep.
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

/// The file behind all links of `name`, there or not; nothing for what can only be written in place.
inline std::optional<std::filesystem::path> replaceable_file(std::filesystem::path name) {
  namespace fs = std::filesystem;
  std::error_code code;
  auto const status = fs::status(name, code);
  if (fs::exists(status) && !fs::is_regular_file(status)) return std::nullopt;
  // Where the links go in a circle, opening the file says so.
  constexpr int max_links = 40;
  for (int links = 0; links < max_links; ++links) {
    if (!fs::is_symlink(fs::symlink_status(name, code))) return name;
    // A link in /proc leads to an open file, which other programs write to as well; its text does not last as a path.
    auto const directory = name.parent_path();
    auto const real = fs::canonical(directory.empty() ? "." : directory, code);
    if (code || real.native().starts_with("/proc/")) return std::nullopt;
    auto const next = fs::read_symlink(name, code);
    if (code) return std::nullopt;
    name = directory / next;
  }
  return std::nullopt;
}

/// A name that goes away with this object.
class temporary_name {
 public:
  temporary_name() = default;
  temporary_name(temporary_name const&) = delete;
  temporary_name& operator=(temporary_name const&) = delete;
  ~temporary_name() {
    std::error_code ignored;  // the error that ends the save is already on its way
    if (!path_.empty()) std::filesystem::remove(path_, ignored);
  }

  std::filesystem::path const& path() const { return path_; }
  void set(std::filesystem::path path) { path_ = std::move(path); }
  void forget() { path_.clear(); }

 private:
  std::filesystem::path path_;
};

/// The new content of a file on its way: construct, write, finish, take_place. Until the last, an exception leaves everything
/// as it was, but for what is written in place.
class replacement {
 public:
  /// Throws file_error (E02), like all of it.
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

  /// All of it is on the disk, where a full one may show only now. Closes the file, since a set may have more files than a
  /// process may have open.
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
  /// Where the name stands.
  std::filesystem::path directory() const { return target_.parent_path().empty() ? "." : target_.parent_path(); }

 private:
  void make_beside() {
    // Nothing of the target's name, which may be as long as a name can be.
    static std::atomic<std::uint64_t> count{0};
    for (int attempt = 0;; ++attempt) {
      auto const path = directory() / (".keel-save-" + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".tmp");
      try {
        file_ = files_.create_new(path);
        beside_.set(path);
        return;
      } catch (file_error const&) {
        // What a process of the same number left behind when it was killed; in a container that is every run.
        constexpr int most_attempts = 1000;
        if (attempt == most_attempts || !files_.exists(path)) throw;
      }
    }
  }

  /// Before the first byte, which may be for few eyes.
  void keep_owner_and_permissions() {
    struct stat older{};
    struct stat newer{};
    if (::stat(target_.c_str(), &older) != 0 || ::fstat(file_.get(), &newer) != 0) return;
    mode_t bits = older.st_mode & 0777;
    if (older.st_uid != newer.st_uid || older.st_gid != newer.st_gid) {
      // Only root may give files away; for others the new file is theirs, as every file that they make, and its group only one of
      // their own. What the older group might do, another may not.
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

/// Makes renames in `directory` last through a power cut, if its file system can; one that cannot fails no save, which is whole
/// without it.
inline void sync_directory_if_possible(file_system& files, std::filesystem::path const& directory) {
  static_cast<void>(files.sync_directory(directory));
}

/// Calls `write(sink)`, which calls `sink(char const* bytes, std::size_t count)` in the order of the file.
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
