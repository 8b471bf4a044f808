// The bodies of direct_messages.hpp.
#pragma once

#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <keel/collective/direct_messages.hpp>
#include <keel/collective/tcp_socket.hpp>
#include <random>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include <keel/core/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Numbers only are looked up without a question to a name server.
inline bool look_up(std::string const& host, std::string const& port, bool is_number, socket_address& found) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = is_number ? AI_NUMERICHOST | AI_NUMERICSERV : 0;
  addrinfo* all = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &wanted, &all) != 0 || all == nullptr) return false;
  std::memcpy(&found.of, all->ai_addr, all->ai_addrlen);
  found.length = all->ai_addrlen;
  ::freeaddrinfo(all);
  return true;
}

/// "ADDRESS PORT" in numbers.
inline std::string words_of(socket_address& address) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (::getnameinfo(address.get(), address.length, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "";
  return std::string(host.data()) + " " + port.data();
}

/// Listens at the address by which this machine reaches the other one.
inline open_socket listen_towards(std::string const& address, int port, int connections, std::string& place) {
  socket_address at;
  if (!look_up(address, std::to_string(port), false, at)) return {};
  // Of a datagram socket this asks for the way, and sends nothing.
  open_socket const way(::socket(at.of.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (way.get() < 0 || ::connect(way.get(), at.get(), at.length) != 0) return {};
  at.length = sizeof(sockaddr_storage);
  if (::getsockname(way.get(), at.get(), &at.length) != 0) return {};
  std::string const host = words_of(at);
  if (!look_up(host.substr(0, host.find(' ')), "0", true, at)) return {};
  open_socket listens(::socket(at.of.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (listens.get() < 0 || ::bind(listens.get(), at.get(), at.length) != 0 || ::listen(listens.get(), connections) != 0)
    return {};
  at.length = sizeof(sockaddr_storage);
  if (::getsockname(listens.get(), at.get(), &at.length) != 0) return {};
  place = words_of(at);
  return listens;
}

inline open_socket connect_to(std::string const& host, std::string const& port, socket_deadline last) {
  socket_address at;
  if (!look_up(host, port, true, at)) return {};
  int failed = 0;
  return connect_to(at, last, failed);
}

/// What one says that connects: a word that only a rank of this world knows, and its rank.
struct message_greeting {
  std::uint64_t word = 0, rank = 0;
};

/// Where the ranks say how they are reached, and that one of them gives up.
class message_places {
 public:
  message_places(c10d::Store& store, socket_deadline last) : store_(store), last_(last) {}

  void say(int rank, std::string const& place) { put(key(rank), place); }
  void give_up() { put(failed, "yes"); }
  bool is_hopeless() { return std::chrono::steady_clock::now() >= last_ || store_.check({failed}); }
  /// Of another rank; empty: it has said nothing in time, or a rank has given up. Asks again and again: on LibTorch 1.13 a wait that has run out
  /// leaves its answer to the next question.
  std::string of(int rank) {
    while (!store_.check({key(rank)})) {
      if (is_hopeless()) return "";
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    auto const bytes = store_.get(key(rank));
    return {bytes.begin(), bytes.end()};
  }

 private:
  static constexpr char const* failed = "direct/failed";
  static std::string key(int rank) { return "direct/" + std::to_string(rank); }
  void put(std::string const& at, std::string const& words) {
    store_.set(at, std::vector<std::uint8_t>(words.begin(), words.end()));
  }

  c10d::Store& store_;
  socket_deadline last_;
};

KEEL_BODY std::unique_ptr<direct_messages> direct_messages::connect(c10d::Store& store, int rank, int size,
                                                                    std::string const& address, int port,
                                                                    std::chrono::milliseconds timeout) {
  if (size > most_ranks) return nullptr;
  // Who cannot waits for the others behind this, within the same time.
  auto const last =
      std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(timeout / 2, std::chrono::seconds(10));
  message_places places(store, last);
  std::string place;
  open_socket const listens = listen_towards(address, port, size, place);
  std::random_device draw;
  std::uint64_t const word = (static_cast<std::uint64_t>(draw()) << 32) | draw();
  std::unique_ptr<direct_messages> all(new direct_messages(rank, size));
  if (listens.get() >= 0 && !place.empty()) {
    places.say(rank, place + " " + std::to_string(word));
    if (all->connect_down(places, last) && all->accept_up(places, listens.get(), word, last)) return all;
  }
  places.give_up();
  return nullptr;
}

KEEL_BODY void direct_messages::take(std::size_t other, open_socket&& made) {
  int const at_once = 1;
  ::setsockopt(made.get(), IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
  peers_[other].socket = made.release();
}

KEEL_BODY bool direct_messages::connect_down(message_places& places, std::chrono::steady_clock::time_point last) {
  for (int other = 0; other < rank_; ++other) {
    std::istringstream words(places.of(other));
    std::string host, at;
    message_greeting mine{.word = 0, .rank = static_cast<std::uint64_t>(rank_)};
    if (!(words >> host >> at >> mine.word)) return false;
    open_socket made = connect_to(host, at, last);
    if (made.get() < 0 || !send_all(made.get(), std::as_bytes(std::span(&mine, 1)), last)) return false;
    take(static_cast<std::size_t>(other), std::move(made));
  }
  return true;
}

KEEL_BODY bool direct_messages::accept_up(message_places& places, int listens, std::uint64_t word,
                                          std::chrono::steady_clock::time_point last) {
  auto const now = [] { return std::chrono::steady_clock::now(); };
  for (int missing = static_cast<int>(peers_.size()) - 1 - rank_; missing > 0;) {
    if (!is_ready(listens, POLLIN, std::min(last, now() + std::chrono::milliseconds(100)))) {
      if (places.is_hopeless()) return false;
      continue;
    }
    if (now() >= last) return false;
    open_socket made(::accept4(listens, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    message_greeting theirs;
    // No descriptor is left, or the like.
    if (made.get() < 0 && errno != ECONNABORTED && !would_block()) return false;
    // Who is not of this world, or says nothing for a second, is not waited for.
    auto const soon = std::min(last, now() + std::chrono::seconds(1));
    if (made.get() < 0 || !receive_all(made.get(), std::as_writable_bytes(std::span(&theirs, 1)), soon) || theirs.word != word)
      continue;
    if (theirs.rank <= static_cast<std::uint64_t>(rank_) || theirs.rank >= peers_.size() || peers_[theirs.rank].socket >= 0)
      continue;
    take(theirs.rank, std::move(made));
    --missing;
  }
  return true;
}

KEEL_BODY direct_messages::~direct_messages() {
  for (peer const& one : peers_) {
    if (one.socket >= 0) ::close(one.socket);
  }
}

KEEL_BODY void direct_messages::fail(std::size_t other, std::string const& why) const {
  throw std::runtime_error("rank " + std::to_string(other) + " " + why);
}

KEEL_BODY void direct_messages::send(std::uint64_t number, std::span<std::byte const> bytes,
                                     std::chrono::milliseconds timeout) {
  std::vector<std::byte> message(sizeof(number) + bytes.size());
  std::memcpy(message.data(), &number, sizeof(number));
  std::copy(bytes.begin(), bytes.end(), message.begin() + sizeof(number));
  auto const last = std::chrono::steady_clock::now() + timeout;
  for (std::size_t other = 0; other < peers_.size(); ++other) {
    if (other == static_cast<std::size_t>(rank_) || send_all(peers_[other].socket, message, last)) continue;
    fail(other, errno == EPIPE || errno == ECONNRESET ? "has closed its connection" : "takes nothing");
  }
}

KEEL_BODY bool direct_messages::take_from(std::size_t other, std::uint64_t number, std::span<std::byte> bytes) {
  peer& from = peers_[other];
  std::size_t const length = sizeof(number) + bytes.size();
  std::array<std::byte, 512> part{};
  while (from.taken < number) {
    // Not into the next message, which a rank that is ahead may have sent.
    auto const came = ::recv(from.socket, part.data(), std::min(part.size(), length - from.come.size()), MSG_DONTWAIT);
    if (came < 0 && would_block()) return false;
    if (came == 0 || (came < 0 && errno == ECONNRESET)) fail(other, "has closed its connection");
    if (came < 0) fail(other, "has a connection that has failed: " + std::generic_category().message(errno));
    from.come.insert(from.come.end(), part.begin(), part.begin() + came);
    if (from.come.size() < length) continue;
    std::memcpy(&from.taken, from.come.data(), sizeof(number));
    std::copy(from.come.begin() + sizeof(number), from.come.end(), bytes.begin());
    from.come.clear();
  }
  if (from.taken != number) fail(other, "is at another collective");
  return true;
}

KEEL_BODY bool direct_messages::take(std::uint64_t number, std::span<std::byte> bytes) {
  bool is_whole = true;
  std::size_t const each = bytes.size() / peers_.size();
  for (std::size_t other = 0; other < peers_.size(); ++other) {
    if (other != static_cast<std::size_t>(rank_))
      is_whole = take_from(other, number, bytes.subspan(other * each, each)) && is_whole;
  }
  return is_whole;
}

KEEL_BODY void direct_messages::wait(std::uint64_t number, std::span<std::byte> bytes, std::chrono::milliseconds timeout) {
  auto const last = std::chrono::steady_clock::now() + timeout;
  std::vector<pollfd> missing;
  while (!take(number, bytes)) {
    missing.clear();
    for (std::size_t other = 0; other < peers_.size(); ++other) {
      if (other != static_cast<std::size_t>(rank_) && peers_[other].taken != number)
        missing.push_back({.fd = peers_[other].socket, .events = POLLIN, .revents = 0});
    }
    // Of all of them: one that is gone is not to wait for one that is late.
    if (is_any_ready(missing, last)) continue;
    auto const is_late = [&](peer const& one) { return one.socket >= 0 && one.taken != number; };
    auto const first = static_cast<std::size_t>(std::find_if(peers_.begin(), peers_.end(), is_late) - peers_.begin());
    fail(first, "has said nothing for " + std::to_string(timeout.count()) + " ms");
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/core/detail/body_end.inc>
