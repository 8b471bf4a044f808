// The file system as keel uses it: every call that can fail throws file_error (E02) with the path and the system's words. A
// test derives from posix_files and makes the Nth call fail.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <keel/core/error.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace keel {

namespace detail {
/// What the system says of an errno; std::strerror is not for several threads.
inline std::string error_words(int code) { return std::generic_category().message(code); }

[[noreturn]] inline void throw_file_error(char const* doing, std::filesystem::path const& path, int code) {
  std::string sentence = std::string("cannot ") + doing + " " + path.string() + ": " + error_words(code) + ".";
  if (code == ENOSPC || code == EDQUOT) sentence += " Free some space; what was saved before is whole.";
  if (code == EACCES || code == EROFS || code == EPERM)
    sentence += " Name another directory, or change the permissions of this one.";
  if (code == ENOTDIR || code == ENAMETOOLONG || code == ELOOP) sentence += " Name another directory.";
  if (code == EMFILE || code == ENFILE) sentence += " Close files that are not needed, or raise the limit with ulimit -n.";
  throw file_error("E02", sentence);
}

/// Calls again what a signal interrupted.
template <class Call>
auto retried(Call const& call) {
  for (;;) {
    auto const result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

/// The file system has no such call, or not for this kind of file.
inline bool is_unsupported(int code) { return code == EINVAL || code == ENOSYS || code == ENOTSUP || code == EOPNOTSUPP; }
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

enum class file_kind : unsigned char { none, file, directory, other };

/// What became of taking a lock.
struct lock_result {
  file_handle handle;       ///< empty: another process holds it
  std::string unsupported;  ///< why nothing is locked although there is a handle; empty: it is
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
  /// Throws where the name is taken.
  file_handle create_new(path const& name) { return open(name, O_WRONLY | O_CREAT | O_EXCL, "create"); }
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
    // A pipe has nothing to sync, and a file system without the call keeps what was written as well as it can.
    if (detail::retried([&] { return ::fsync(file.get()); }) != 0 && !detail::is_unsupported(errno))
      detail::throw_file_error("sync", name, errno);
  }

  /// Makes the entries of a directory durable. Returns why that cannot be promised, where the directory may be entered but not
  /// read or its file system syncs no directories; empty: they are.
  std::string sync_directory(path const& directory) {
    char const* const name = directory.empty() ? "." : directory.c_str();
    file_handle const handle(detail::retried([&] { return ::open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (!handle && errno != EACCES && errno != EPERM) detail::throw_file_error("open", directory, errno);
    if (handle && detail::retried([&] { return ::fsync(handle.get()); }) == 0) return {};
    // EINVAL: as of some network file systems, which have nothing to sync.
    if (handle && errno == EINVAL) return {};
    if (handle && !detail::is_unsupported(errno)) detail::throw_file_error("sync", directory, errno);
    return "the entries of " + directory.string() + " cannot be synced (" + detail::error_words(errno) +
           "), so that a power cut may lose the newest";
  }

  void truncate(path const& name, std::uint64_t size) {
    if (detail::retried([&] { return ::truncate(name.c_str(), static_cast<off_t>(size)); }) != 0)
      detail::throw_file_error("truncate", name, errno);
  }

  void rename(path const& from, path const& to) {
    if (::rename(from.c_str(), to.c_str()) != 0) detail::throw_file_error("rename", from, errno);
  }

  /// Removes a file, a link or the like, and never a directory; one that is not there is fine.
  void remove_file(path const& name) {
    if (::unlink(name.c_str()) != 0 && errno != ENOENT) detail::throw_file_error("remove", name, errno);
  }
  /// Removes a directory if it is empty; false if it is not.
  bool remove_directory(path const& name) {
    if (::rmdir(name.c_str()) == 0 || errno == ENOENT) return true;
    if (errno == ENOTEMPTY || errno == EEXIST) return false;
    detail::throw_file_error("remove", name, errno);
  }

  /// Of the entry itself: a link is none of a file and a directory.
  file_kind kind(path const& name) {
    struct stat status{};
    if (::lstat(name.c_str(), &status) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) return file_kind::none;
      detail::throw_file_error("look for", name, errno);
    }
    if (S_ISREG(status.st_mode)) return file_kind::file;
    return S_ISDIR(status.st_mode) ? file_kind::directory : file_kind::other;
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

  /// An exclusive lock for as long as the handle lives, also against other processes.
  lock_result try_lock(path const& name) {
    file_handle file = open(name, O_RDWR | O_CREAT, "open");
    if (detail::retried([&] { return ::flock(file.get(), LOCK_EX | LOCK_NB); }) == 0) return {std::move(file), {}};
    if (errno == EWOULDBLOCK) return {};
    if (!detail::is_unsupported(errno) && errno != ENOLCK) detail::throw_file_error("lock", name, errno);
    return {std::move(file), detail::error_words(errno)};
  }
  /// The open file still has this name; also where the system does not say.
  bool is_named(file_handle const& file, path const& name) {
    struct stat opened{};
    struct stat named{};
    if (::stat(name.c_str(), &named) != 0) return errno != ENOENT;
    return ::fstat(file.get(), &opened) != 0 || (opened.st_dev == named.st_dev && opened.st_ino == named.st_ino);
  }

 private:
  static file_handle open(path const& name, int flags, char const* doing) {
    int const descriptor = detail::retried([&] { return ::open(name.c_str(), flags | O_CLOEXEC, 0644); });
    if (descriptor < 0) detail::throw_file_error(doing, name, errno);
    return file_handle(descriptor);
  }
};

}  // namespace keel
