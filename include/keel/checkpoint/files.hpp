// The file system as keel uses it: every call that can fail throws file_error (E02) with the path and the system's words. A
// test derives from posix_files and makes the Nth call fail.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <keel/error.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace keel {

namespace detail {
[[noreturn]] inline void throw_file_error(char const* doing, std::filesystem::path const& path, int code) {
  std::string sentence = std::string("cannot ") + doing + " " + path.string() + ": " + std::strerror(code) + ".";
  if (code == ENOSPC || code == EDQUOT) sentence += " Free some space; what was saved before is whole.";
  if (code == EACCES || code == EROFS || code == EPERM) sentence += " Give the run a directory that it may write to.";
  throw file_error("E02", sentence);
}
}  // namespace detail

/// A file descriptor that closes itself.
class file_handle {
 public:
  file_handle() = default;
  explicit file_handle(int descriptor) : descriptor_(descriptor) {}
  file_handle(file_handle&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  file_handle& operator=(file_handle&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~file_handle() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

class posix_files {
 public:
  using path = std::filesystem::path;

  void make_directories(path const& directory) {
    std::error_code code;
    std::filesystem::create_directories(directory, code);
    if (code) detail::throw_file_error("make the directory", directory, code.value());
  }

  file_handle create(path const& name) { return open(name, O_WRONLY | O_CREAT | O_TRUNC, "create"); }
  file_handle open_for_append(path const& name) { return open(name, O_WRONLY | O_CREAT | O_APPEND, "open"); }

  void write(file_handle const& file, path const& name, char const* bytes, std::size_t count) {
    while (count > 0) {
      ssize_t const written = ::write(file.get(), bytes, count);
      if (written < 0) {
        if (errno == EINTR) continue;
        detail::throw_file_error("write", name, errno);
      }
      bytes += written;
      count -= static_cast<std::size_t>(written);
    }
  }

  /// Lets the disk begin with what was written, so that it works while the next part is being made; promises nothing.
  void begin_writing_back(file_handle const& file, std::uint64_t offset, std::uint64_t count) {
#ifdef __linux__
    // A hint: where the system cannot take it, the sync does all of the work.
    static_cast<void>(
        ::sync_file_range(file.get(), static_cast<off_t>(offset), static_cast<off_t>(count), SYNC_FILE_RANGE_WRITE));
#else
    static_cast<void>(file), static_cast<void>(offset), static_cast<void>(count);
#endif
  }

  void sync(file_handle const& file, path const& name) {
    // What is no file on a disk, such as a pipe, has nothing to sync.
    if (::fsync(file.get()) != 0 && errno != EINVAL) detail::throw_file_error("sync", name, errno);
  }

  void sync_directory(path const& directory) {
    file_handle const handle = open(directory, O_RDONLY | O_DIRECTORY, "open");
    sync(handle, directory);
  }

  void truncate(path const& name, std::uint64_t size) {
    if (::truncate(name.c_str(), static_cast<off_t>(size)) != 0) detail::throw_file_error("truncate", name, errno);
  }

  void rename(path const& from, path const& to) {
    if (::rename(from.c_str(), to.c_str()) != 0) detail::throw_file_error("rename", from, errno);
  }

  void remove_all(path const& name) {
    std::error_code code;
    std::filesystem::remove_all(name, code);
    if (code) detail::throw_file_error("remove", name, code.value());
  }

  bool exists(path const& name) {
    std::error_code code;
    bool const found = std::filesystem::exists(name, code);
    if (code) detail::throw_file_error("look for", name, code.value());
    return found;
  }

  std::uint64_t size(path const& name) {
    std::error_code code;
    auto const bytes = std::filesystem::file_size(name, code);
    if (code) detail::throw_file_error("read the size of", name, code.value());
    return bytes;
  }

  std::vector<path> list(path const& directory) {
    std::vector<path> names;
    std::error_code code;
    for (std::filesystem::directory_iterator at(directory, code), end; !code && at != end; at.increment(code)) {
      names.push_back(at->path());
    }
    if (code) detail::throw_file_error("list", directory, code.value());
    return names;
  }

  file_handle open_for_read(path const& name) { return open(name, O_RDONLY, "open"); }

  /// Fewer than `count` at the end of the file only. Several threads may read one file.
  std::size_t read_at(file_handle const& file, path const& name, char* to, std::size_t count, std::uint64_t offset) {
    std::size_t done = 0;
    while (done < count) {
      ssize_t const got = ::pread(file.get(), to + done, count - done, static_cast<off_t>(offset + done));
      if (got == 0) break;
      if (got < 0) {
        if (errno == EINTR) continue;
        detail::throw_file_error("read", name, errno);
      }
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

  std::string read(path const& name) {
    file_handle const file = open(name, O_RDONLY, "open");
    std::string content;
    char block[1 << 16];
    for (;;) {
      ssize_t const count = ::read(file.get(), block, sizeof block);
      if (count == 0) return content;
      if (count < 0) {
        if (errno == EINTR) continue;
        detail::throw_file_error("read", name, errno);
      }
      content.append(block, static_cast<std::size_t>(count));
    }
  }

  /// An exclusive lock for as long as the handle lives, also against other processes; empty if somebody else holds it.
  file_handle try_lock(path const& name) {
    file_handle file = open(name, O_RDWR | O_CREAT, "open");
    if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
    if (errno == EWOULDBLOCK) return {};
    detail::throw_file_error("lock", name, errno);
  }

 private:
  static file_handle open(path const& name, int flags, char const* doing) {
    int const descriptor = ::open(name.c_str(), flags | O_CLOEXEC, 0644);
    if (descriptor < 0) detail::throw_file_error(doing, name, errno);
    return file_handle(descriptor);
  }
};

}  // namespace keel
