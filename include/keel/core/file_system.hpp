// The file system as keel uses it. Every call that can fail throws file_error (E02) with the path and the system's message. The class is
// stateless; a test derives from it and makes the Nth call fail.
// Files that are written or truncated must be regular files and not links, because the target of a link may not belong to keel. Files that
// are read may be behind a link, but must be regular and of bounded size: a pipe has no end, and a device may have none.
#pragma once

#include <fcntl.h>
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

namespace keel::detail::inline KEEL_MODE {
/// Returns the system's message for an errno. std::strerror is not thread-safe.
inline std::string error_words(int code) { return std::generic_category().message(code); }

[[noreturn]] void throw_file_error(char const* doing, std::filesystem::path const& path, int code);

/// Repeats a system call that a signal interrupted.
template <class Call>
auto retried(Call const& call) {
  for (;;) {
    auto const result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

/// True if the file system does not support the call, or not for this kind of file.
inline bool is_unsupported(int code) { return code == EINVAL || code == ENOSYS || code == ENOTSUP || code == EOPNOTSUPP; }
}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// A file descriptor that is closed on destruction.
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

/// The result of taking a lock.
struct lock_result {
  file_handle handle;       ///< empty if another process holds the lock
  std::string unsupported;  ///< why the handle is not locked; empty if it is
};

class file_system {
 public:
  using path = std::filesystem::path;

  file_system() = default;
  file_system(file_system const&) = default;
  file_system& operator=(file_system const&) = default;
  virtual ~file_system() = default;

  virtual void make_directories(path const& directory);

  /// Limit for texts that are read as a whole. The record of a run may be longer than other files.
  static constexpr std::uint64_t longest_text = std::uint64_t{1} << 28;
  static constexpr std::uint64_t max_record_bytes = std::uint64_t{1} << 34;

  /// Creates an empty file; truncates an existing one.
  virtual file_handle create(path const& name);
  /// Creates a file; throws if the name exists.
  virtual file_handle create_new(path const& name) { return open(name, O_WRONLY | O_CREAT | O_EXCL, "create"); }
  /// Opens a path that a person gave, which may be a pipe, a device or a link.
  virtual file_handle create_in_place(path const& name) { return open(name, O_WRONLY | O_CREAT | O_TRUNC, "create"); }
  virtual file_handle open_for_append(path const& name) {
    return open_regular(name, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, "open");
  }

  virtual void write(file_handle const& file, path const& name, char const* bytes, std::size_t count);

  /// Starts writing back to the disk, so that it overlaps the preparation of the next part. Guarantees nothing.
  virtual void begin_writing_back(file_handle const& file, std::uint64_t offset, std::uint64_t count);

  virtual void sync(file_handle const& file, path const& name);

  /// Makes the entries of a directory durable. Returns the reason if that is not possible, because the directory is not readable or its
  /// file system does not sync directories; empty on success.
  virtual std::string sync_directory(path const& directory);

  virtual void truncate(path const& name, std::uint64_t size);

  virtual void rename(path const& from, path const& to) {
    if (::rename(from.c_str(), to.c_str()) != 0) detail::throw_file_error("rename", from, errno);
  }

  /// Removes a file, a link or another entry that is not a directory. A missing entry is not an error.
  virtual void remove_file(path const& name) {
    if (::unlink(name.c_str()) != 0 && errno != ENOENT) detail::throw_file_error("remove", name, errno);
  }
  /// Removes a directory if it is empty; returns false if it is not.
  virtual bool remove_directory(path const& name);

  /// Returns the kind of the entry itself; a link is neither a file nor a directory.
  virtual file_kind kind(path const& name);

  virtual bool exists(path const& name);

  virtual std::uint64_t size(path const& name);

  virtual std::vector<path> list(path const& directory);

  virtual file_handle open_for_read(path const& name) { return open_regular(name, O_RDONLY, "open"); }

  /// Returns fewer than `count` bytes only at the end of the file. Several threads may read one file.
  virtual std::size_t read_at(file_handle const& file, path const& name, char* to, std::size_t count, std::uint64_t offset);

  virtual std::string read(path const& name, std::uint64_t most = longest_text);

  /// Takes an exclusive lock, also against other processes, for the lifetime of the handle.
  virtual lock_result try_lock(path const& name);
  /// True if a process on this machine holds a lock of try_lock on the file, and also if the system cannot determine that.
  virtual bool is_locked(path const& name);
  /// True if the open file still has this name, and also if the system cannot determine that.
  virtual bool is_named(file_handle const& file, path const& name);

 private:
  static file_handle open(path const& name, int flags, char const* doing);
  /// Opens a regular file; does not block on a pipe.
  static file_handle open_regular(path const& name, int flags, char const* doing);
};

/// Returns the file system of this machine. Thread-safe.
inline file_system& real_files() {
  static file_system files;
  return files;
}

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/core/file_system.ipp>
#endif
