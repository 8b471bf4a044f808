// Definitions for file_system.hpp.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#include <fstream>
#include <keel/core/file_system.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Makes a write beyond the process's file size limit fail with an error. By default its signal (SIGXFSZ) would end the process without a
/// message.
class size_limit_scope {
 public:
  size_limit_scope() {
    ::sigemptyset(&signal_);
    ::sigaddset(&signal_, SIGXFSZ);
    ::pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  size_limit_scope(size_limit_scope const&) = delete;
  size_limit_scope& operator=(size_limit_scope const&) = delete;
  ~size_limit_scope() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  /// Consumes the pending signal of this thread after a write failed because of the limit.
  void take_signal() {
    struct timespec const at_once{};
    if (::sigismember(&before_, SIGXFSZ) == 0) ::sigtimedwait(&signal_, nullptr, &at_once);
  }

 private:
  sigset_t signal_{}, before_{};
};

KEEL_BODY void throw_file_error(char const* doing, std::filesystem::path const& path, int code) {
  std::string sentence = std::string("cannot ") + doing + " " + path.string() + ": " + error_words(code) + ".";
  if (code == ENOSPC || code == EDQUOT) sentence += " Free some space; earlier files are intact.";
  if (code == EFBIG) sentence += " Raise the file size limit with ulimit -f, or write elsewhere; earlier files are intact.";
  if (code == EACCES || code == EROFS || code == EPERM)
    sentence += " Name another directory, or change the permissions of this one.";
  if (code == ENOTDIR || code == ENAMETOOLONG || code == ELOOP) sentence += " Name another directory.";
  if (code == EMFILE || code == ENFILE) sentence += " Close files that are not needed, or raise the limit with ulimit -n.";
  throw file_error("E02", sentence);
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY void file_system::make_directories(path const& directory) {
  std::error_code code;
  std::filesystem::create_directories(directory, code);
  if (code) detail::throw_file_error("create the directory", directory, code.value());
}

KEEL_BODY file_handle file_system::create(path const& name) {
  file_handle file = open_regular(name, O_WRONLY | O_CREAT | O_NOFOLLOW, "create");
  if (detail::retried([&] { return ::ftruncate(file.get(), 0); }) != 0) detail::throw_file_error("create", name, errno);
  return file;
}

KEEL_BODY void file_system::truncate(path const& name, std::uint64_t size) {
  file_handle const file = open_regular(name, O_WRONLY | O_NOFOLLOW, "truncate");
  if (detail::retried([&] { return ::ftruncate(file.get(), static_cast<off_t>(size)); }) != 0)
    detail::throw_file_error("truncate", name, errno);
}

KEEL_BODY void file_system::write(file_handle const& file, path const& name, char const* bytes, std::size_t count) {
  detail::size_limit_scope limit;
  while (count > 0) {
    ssize_t const written = ::write(file.get(), bytes, count);
    if (written < 0) {
      int const code = errno;
      if (code == EINTR) continue;
      if (code == EFBIG) limit.take_signal();
      detail::throw_file_error("write", name, code);
    }
    bytes += written;
    count -= static_cast<std::size_t>(written);
  }
}

KEEL_BODY void file_system::begin_writing_back(file_handle const& file, std::uint64_t offset, std::uint64_t count) {
#ifdef __linux__
  // Only a hint: if the system does not support it, the later sync does all of the work.
  static_cast<void>(
      ::sync_file_range(file.get(), static_cast<off_t>(offset), static_cast<off_t>(count), SYNC_FILE_RANGE_WRITE));
#else
  static_cast<void>(file), static_cast<void>(offset), static_cast<void>(count);
#endif
}

KEEL_BODY void file_system::sync(file_handle const& file, path const& name) {
  // Pipes cannot be synced, and a file system without the call offers no better durability.
  if (detail::retried([&] { return ::fsync(file.get()); }) != 0 && !detail::is_unsupported(errno))
    detail::throw_file_error("sync", name, errno);
}

KEEL_BODY std::string file_system::sync_directory(path const& directory) {
  char const* const name = directory.empty() ? "." : directory.c_str();
  file_handle const handle(detail::retried([&] { return ::open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!handle && errno != EACCES && errno != EPERM) detail::throw_file_error("open", directory, errno);
  if (handle && detail::retried([&] { return ::fsync(handle.get()); }) == 0) return {};
  // Some network file systems return EINVAL because they have nothing to sync.
  if (handle && errno == EINVAL) return {};
  if (handle && !detail::is_unsupported(errno)) detail::throw_file_error("sync", directory, errno);
  return "the entries of " + directory.string() + " cannot be synced (" + detail::error_words(errno) +
         "), so a power failure may lose the newest";
}

KEEL_BODY bool file_system::remove_directory(path const& name) {
  if (::rmdir(name.c_str()) == 0 || errno == ENOENT) return true;
  if (errno == ENOTEMPTY || errno == EEXIST) return false;
  detail::throw_file_error("remove", name, errno);
}

KEEL_BODY file_kind file_system::kind(path const& name) {
  struct stat status{};
  if (::lstat(name.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return file_kind::none;
    detail::throw_file_error("look for", name, errno);
  }
  if (S_ISREG(status.st_mode)) return file_kind::file;
  return S_ISDIR(status.st_mode) ? file_kind::directory : file_kind::other;
}

KEEL_BODY bool file_system::exists(path const& name) {
  std::error_code code;
  bool const found = std::filesystem::exists(name, code);
  if (code) detail::throw_file_error("look for", name, code.value());
  return found;
}

KEEL_BODY std::uint64_t file_system::size(path const& name) {
  std::error_code code;
  auto const bytes = std::filesystem::file_size(name, code);
  if (code) detail::throw_file_error("read the size of", name, code.value());
  return bytes;
}

KEEL_BODY std::vector<file_system::path> file_system::list(path const& directory) {
  std::vector<path> names;
  std::error_code code;
  for (std::filesystem::directory_iterator at(directory, code), end; !code && at != end; at.increment(code)) {
    names.push_back(at->path());
  }
  if (code) detail::throw_file_error("list", directory, code.value());
  return names;
}

KEEL_BODY std::size_t file_system::read_at(file_handle const& file, path const& name, char* to, std::size_t count,
                                           std::uint64_t offset) {
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

KEEL_BODY std::string file_system::read(path const& name, std::uint64_t most) {
  file_handle const file = open_for_read(name);
  std::string content;
  char block[1 << 16];
  for (;;) {
    ssize_t const count = ::read(file.get(), block, sizeof block);
    if (count == 0) return content;
    if (count < 0) {
      if (errno == EINTR) continue;
      detail::throw_file_error("read", name, errno);
    }
    if (content.size() + static_cast<std::size_t>(count) > most)
      throw file_error("E02", "cannot read " + name.string() + ": it has more than " + std::to_string(most) +
                                  " bytes, the limit for a file of this kind. Remove it, or name another file.");
    content.append(block, static_cast<std::size_t>(count));
  }
}

KEEL_BODY lock_result file_system::try_lock(path const& name) {
  file_handle file = open_regular(name, O_RDWR | O_CREAT | O_NOFOLLOW, "open");
  if (detail::retried([&] { return ::flock(file.get(), LOCK_EX | LOCK_NB); }) == 0) return {std::move(file), {}};
  if (errno == EWOULDBLOCK) return {};
  if (!detail::is_unsupported(errno) && errno != ENOLCK) detail::throw_file_error("lock", name, errno);
  return {std::move(file), detail::error_words(errno)};
}

KEEL_BODY bool file_system::is_locked(path const& name) {
  struct stat status{};
  if (::stat(name.c_str(), &status) != 0) return errno != ENOENT;
  std::ifstream all("/proc/locks");
  if (!all.is_open()) return true;
  // Example: 1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF. On layered file systems the device differs from that of stat().
  std::string const place = ":" + std::to_string(status.st_ino) + " ";
  for (std::string line; std::getline(all, line);) {
    if (line.find(" FLOCK ") != std::string::npos && line.find(place) != std::string::npos) return true;
  }
  return false;
}

KEEL_BODY bool file_system::is_named(file_handle const& file, path const& name) {
  struct stat opened{};
  struct stat named{};
  if (::stat(name.c_str(), &named) != 0) return errno != ENOENT;
  return ::fstat(file.get(), &opened) != 0 || (opened.st_dev == named.st_dev && opened.st_ino == named.st_ino);
}

KEEL_BODY file_handle file_system::open(path const& name, int flags, char const* doing) {
  int const descriptor = detail::retried([&] { return ::open(name.c_str(), flags | O_CLOEXEC, 0644); });
  if (descriptor < 0) detail::throw_file_error(doing, name, errno);
  return file_handle(descriptor);
}

KEEL_BODY file_handle file_system::open_regular(path const& name, int flags, char const* doing) {
  auto const refuse = [&](char const* what) {
    throw file_error("E02", std::string("cannot ") + doing + " " + name.string() + ": it is " + what +
                                " and not a regular file. Remove it, or name another file.");
  };
  int const descriptor = detail::retried([&] { return ::open(name.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0644); });
  int const code = errno;
  struct stat status{};
  if (descriptor < 0) {
    bool const is_there = ::lstat(name.c_str(), &status) == 0;
    if (code == ELOOP && is_there && S_ISLNK(status.st_mode)) refuse("a symbolic link");
    if (code == ENXIO) refuse("a pipe, a socket or a device");
    detail::throw_file_error(doing, name, code);
  }
  file_handle file(descriptor);
  if (::fstat(descriptor, &status) != 0) detail::throw_file_error(doing, name, errno);
  if (S_ISDIR(status.st_mode)) detail::throw_file_error(doing, name, EISDIR);
  if (!S_ISREG(status.st_mode)) refuse("a pipe, a socket or a device");
  return file;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
