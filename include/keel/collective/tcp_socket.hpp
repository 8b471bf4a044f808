// Non-blocking TCP sockets with deadlines.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

class unique_socket {
 public:
  unique_socket() = default;
  explicit unique_socket(int of) : fd_(of) {}
  unique_socket(unique_socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  unique_socket& operator=(unique_socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  unique_socket(unique_socket const&) = delete;
  unique_socket& operator=(unique_socket const&) = delete;
  ~unique_socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

/// The time at which a wait times out.
using socket_deadline = std::chrono::steady_clock::time_point;

/// Waits until the socket is readable or writable (`what`: POLLIN, POLLOUT), or the connection has ended. Returns false if `deadline` passes
/// first, or on an error.
inline bool wait_until_ready(int socket, short what, socket_deadline deadline) {
  for (;;) {
    pollfd asked{.fd = socket, .events = what, .revents = 0};
    auto const left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    int const found = ::poll(&asked, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000)));
    if (found > 0) return true;
    if ((found < 0 && errno != EINTR) || left <= 0) return false;
  }
}

inline bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

struct socket_address {
  sockaddr_storage of{};
  socklen_t length = sizeof(sockaddr_storage);

  sockaddr* get() {
    return reinterpret_cast<sockaddr*>(&of);
  }  // NOLINT(cppcoreguidelines-pro-type-reinterpret-cast): required by the sockets API
};

/// Connects to the address by the deadline. Otherwise returns an empty socket and sets `failed` to the errno value.
inline unique_socket connect_to(socket_address& at, socket_deadline deadline, int& failed) {
  unique_socket made(::socket(at.of.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (made.get() >= 0 && ::connect(made.get(), at.get(), at.length) == 0) return made;
  failed = errno;
  if (made.get() < 0 || failed != EINPROGRESS) return {};
  failed = ETIMEDOUT;
  if (!wait_until_ready(made.get(), POLLOUT, deadline)) return {};
  socklen_t length = sizeof(failed);
  if (::getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &failed, &length) != 0) failed = errno;
  if (failed != 0) return {};
  return made;
}

}  // namespace keel::detail::inline KEEL_MODE
