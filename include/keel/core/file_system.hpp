// The file system as keel uses it: every call that can fail throws file_error (E02) with the path and the system's words. It has no state
// itself; a test derives from it and makes the Nth call fail.
// A name that is written to or cut is a regular file, and never a link: what a link leads to is not keel's. What is read may be behind
// a link, and is a regular file of a bounded size: a pipe has no end, and a device may have none.
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
/// What the system says of an errno; std::strerror is not for several threads.
inline std::string error_words(int code) { return std::generic_category().message(code); }

[[noreturn]] void throw_file_error(char const* doing, std::filesystem::path const& path, int code);

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
}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

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

class file_system {
 public:
  using path = std::filesystem::path;

  file_system() = default;
  file_system(file_system const&) = default;
  file_system& operator=(file_system const&) = default;
  virtual ~file_system() = default;

  virtual void make_directories(path const& directory);

  /// Larger texts than this are not read at once; a record of a run may be longer than other files.
  static constexpr std::uint64_t longest_text = std::uint64_t{1} << 28;
  static constexpr std::uint64_t max_record_bytes = std::uint64_t{1} << 34;

  /// Empty; an older file of this name is cut.
  virtual file_handle create(path const& name);
  /// Throws where the name is taken.
  virtual file_handle create_new(path const& name) { return open(name, O_WRONLY | O_CREAT | O_EXCL, "create"); }
  /// What a person named, also a pipe, a device or a link.
  virtual file_handle create_in_place(path const& name) { return open(name, O_WRONLY | O_CREAT | O_TRUNC, "create"); }
  virtual file_handle open_for_append(path const& name) {
    return open_regular(name, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, "open");
  }

  virtual void write(file_handle const& file, path const& name, char const* bytes, std::size_t count);

  /// Lets the disk begin with what was written, so that it works while the next part is being made; promises nothing.
  virtual void begin_writing_back(file_handle const& file, std::uint64_t offset, std::uint64_t count);

  virtual void sync(file_handle const& file, path const& name);

  /// Makes the entries of a directory durable. Returns why that cannot be promised, where the directory may be entered but not
  /// read or its file system syncs no directories; empty: they are.
  virtual std::string sync_directory(path const& directory);

  virtual void truncate(path const& name, std::uint64_t size);

  virtual void rename(path const& from, path const& to) {
    if (::rename(from.c_str(), to.c_str()) != 0) detail::throw_file_error("rename", from, errno);
  }

  /// Removes a file, a link or the like, and never a directory; one that is not there is fine.
  virtual void remove_file(path const& name) {
    if (::unlink(name.c_str()) != 0 && errno != ENOENT) detail::throw_file_error("remove", name, errno);
  }
  /// Removes a directory if it is empty; false if it is not.
  virtual bool remove_directory(path const& name);

  /// Of the entry itself: a link is none of a file and a directory.
  virtual file_kind kind(path const& name);

  virtual bool exists(path const& name);

  virtual std::uint64_t size(path const& name);

  virtual std::vector<path> list(path const& directory);

  virtual file_handle open_for_read(path const& name) { return open_regular(name, O_RDONLY, "open"); }

  /// Fewer than `count` at the end of the file only. Several threads may read one file.
  virtual std::size_t read_at(file_handle const& file, path const& name, char* to, std::size_t count, std::uint64_t offset);

  virtual std::string read(path const& name, std::uint64_t most = longest_text);

  /// An exclusive lock for as long as the handle lives, also against other processes.
  virtual lock_result try_lock(path const& name);
  /// A process of this machine holds a lock of try_lock on it; also where the system does not say.
  virtual bool is_locked(path const& name);
  /// The open file still has this name; also where the system does not say.
  virtual bool is_named(file_handle const& file, path const& name);

 private:
  static file_handle open(path const& name, int flags, char const* doing);
  /// Without waiting for the other end of a pipe.
  static file_handle open_regular(path const& name, int flags, char const* doing);
};

/// That of this machine, for any thread.
inline file_system& real_files() {
  static file_system files;
  return files;
}

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/core/file_system.ipp>
#endif
