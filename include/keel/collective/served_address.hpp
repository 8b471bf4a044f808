// Waits until the process that serves the rendezvous store responds. While that process is stopped, the kernel still accepts connections
// for it; the TCPStore of LibTorch 1.13 then blocks forever, or terminates this process if the server is killed before it accepts.
#pragma once

#include <netdb.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <keel/collective/tcp_socket.hpp>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace keel::detail::inline KEEL_MODE {

/// Returns true if the peer process serves the connection: shuts down this side and waits until `deadline` for the peer to close it or to
/// send data.
inline bool is_responding(unique_socket const& connection, socket_deadline deadline) {
  ::shutdown(connection.get(), SHUT_WR);
  std::byte first{};
  while (wait_until_ready(connection.get(), POLLIN, deadline)) {
    auto const came = ::recv(connection.get(), &first, 1, MSG_DONTWAIT);
    if (came >= 0) return true;
    if (!would_block()) return false;
  }
  return false;
}

/// How long to retry an unknown host name: names of containers that start together may become resolvable later.
inline constexpr std::chrono::seconds name_resolution_timeout{60};

struct addrinfo_deleter {
  void operator()(addrinfo* all) const { ::freeaddrinfo(all); }
};

/// Waits until a process listens at the address and responds. Returns false if one listens but does not respond by `deadline`. Throws
/// std::runtime_error with the system's message if the address is invalid, or if no process listens there by `deadline`. Calls `on_retry`
/// before each retry.
template <class OnRetry>
bool wait_until_served(std::string const& host, int port, socket_deadline deadline, OnRetry const& on_retry) {
  auto const now = [] { return std::chrono::steady_clock::now(); };
  auto const name_deadline = std::min(deadline, now() + name_resolution_timeout);
  // Tries the resolved addresses in turn. After a round in which one did not respond, each gets twice the time.
  for (auto turn = std::chrono::milliseconds(1000);;) {
    addrinfo wanted{};
    wanted.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    int const unknown = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
    if (unknown != 0 && now() >= name_deadline) throw std::runtime_error(::gai_strerror(unknown));
    std::unique_ptr<addrinfo, addrinfo_deleter> const all(found);
    bool is_silent = false, may_listen_later = unknown != 0;
    int why = 0;
    for (addrinfo const* one = found; one != nullptr; one = one->ai_next) {
      socket_address at;
      std::memcpy(&at.of, one->ai_addr, one->ai_addrlen);
      at.length = one->ai_addrlen;
      bool const is_only_one = found->ai_next == nullptr;
      auto const soon = is_only_one ? deadline : std::min<socket_deadline>(deadline, now() + turn);
      int failed = ECONNRESET;
      if (unique_socket const made = connect_to(at, soon, failed); made.get() >= 0) {
        if (is_responding(made, soon)) return true;
        is_silent = is_silent || now() >= soon;
        failed = ECONNRESET;
      }
      may_listen_later = may_listen_later || failed == ECONNREFUSED || failed == ECONNRESET || failed == ETIMEDOUT;
      if (why == 0 || failed == ECONNREFUSED) why = failed;
    }
    if (is_silent && now() >= deadline) return false;
    if (is_silent) turn = 2 * turn;
    if (unknown == 0 && (!may_listen_later || now() >= deadline))
      throw std::runtime_error(std::generic_category().message(why));
    on_retry();
    std::this_thread::sleep_for(std::chrono::milliseconds(unknown != 0 ? 500 : 20));
  }
}

}  // namespace keel::detail::inline KEEL_MODE
