// Whether a process that serves the store of the ranks is at work. The system takes connections for a process that is stopped, and a
// TCPStore of LibTorch 1.13 then waits forever, and ends this process where the other is killed before it has taken the connection.
#pragma once

#include <netdb.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <keel/collective/tcp_socket.hpp>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace keel::detail {

/// The process behind the connection looks at what comes: it closes what has been closed here.
inline bool is_at_work(open_socket const& connection, socket_deadline last) {
  ::shutdown(connection.get(), SHUT_WR);
  std::byte first{};
  while (is_ready(connection.get(), POLLIN, last)) {
    auto const came = ::recv(connection.get(), &first, 1, MSG_DONTWAIT);
    if (came >= 0) return true;
    if (!would_block()) return false;
  }
  return false;
}

/// Waits for a process to listen at the address, and to answer. False: one listens, and does not answer in time. Throws std::runtime_error
/// with the system's words where the address is wrong, or no process listens there by then.
inline bool is_served(std::string const& host, int port, socket_deadline last) {
  auto const now = [] { return std::chrono::steady_clock::now(); };
  for (bool is_silent = false;;) {
    addrinfo wanted{};
    wanted.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    int const unknown = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
    if (unknown != 0 && (unknown != EAI_AGAIN || now() >= last)) throw std::runtime_error(::gai_strerror(unknown));
    std::unique_ptr<addrinfo, decltype([](addrinfo* all) { ::freeaddrinfo(all); })> const all(found);
    std::ptrdiff_t left = 0;
    for (addrinfo const* one = found; one != nullptr; one = one->ai_next) ++left;
    int failed = EAGAIN;
    for (addrinfo const* one = found; one != nullptr; one = one->ai_next, --left) {
      socket_address at;
      std::memcpy(&at.of, one->ai_addr, one->ai_addrlen);
      at.length = one->ai_addrlen;
      // An address that answers nothing leaves time for the next.
      open_socket const made = connect_to(at, now() + (last - now()) / left, failed);
      if (made.get() < 0) continue;
      if (is_at_work(made, last)) return true;
      is_silent = now() >= last;
      failed = ECONNRESET;
    }
    if (is_silent) return false;
    bool const may_listen_later = failed == ECONNREFUSED || failed == ECONNRESET || failed == EAGAIN;
    if (!may_listen_later || now() >= last) throw std::runtime_error(std::generic_category().message(failed));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace keel::detail
