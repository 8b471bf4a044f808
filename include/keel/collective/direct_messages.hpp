// A few bytes from each rank to each, by a separate connection between each two. What is sent lies at the receiver before it asks for it,
// and no thread has to wake up on the way: a third of what Gloo's all-gather needs on a busy machine.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

class message_places;
class open_socket;

class direct_messages {
 public:
  /// Each rank has a connection to each.
  static constexpr int most_ranks = 64;

  /// Of all ranks at once, by the address at which this one reaches `address`, where the ranks meet. Null where it cannot, as behind a firewall
  /// that admits no more connections; others may have come.
  static std::unique_ptr<direct_messages> connect(c10d::Store& store, int rank, int size, std::string const& address, int port,
                                                  std::chrono::milliseconds timeout);

  direct_messages(direct_messages const&) = delete;
  direct_messages& operator=(direct_messages const&) = delete;
  ~direct_messages();

  /// Message `number`, to all others; numbers rise, and all messages are of one length. Throws std::runtime_error that names the rank that is
  /// gone, or takes nothing for that time.
  void send(std::uint64_t number, std::span<std::byte const> bytes, std::chrono::milliseconds timeout);
  /// The others' messages of that number, of bytes.size() / size() each in the order of the ranks, whose own is not touched; older ones are
  /// dropped. False: some have not come. Throws as send(), and for a rank whose next message is of another number.
  bool take(std::uint64_t number, std::span<std::byte> bytes);
  /// The same, which waits for all of them for so long.
  void wait(std::uint64_t number, std::span<std::byte> bytes, std::chrono::milliseconds timeout);

 private:
  struct peer {
    int socket = -1;
    std::vector<std::byte> come = {};  ///< of a message that is not all here
    std::uint64_t taken = 0;           ///< the number of its last whole message
  };

  void take(std::size_t other, open_socket&& made);
  /// To the ranks before this one, and from those behind it; false: not in time.
  bool connect_down(message_places& places, std::chrono::steady_clock::time_point last);
  bool accept_up(message_places& places, int listens, std::uint64_t word, std::chrono::steady_clock::time_point last);

  direct_messages(int rank, int size) : rank_(rank), peers_(static_cast<std::size_t>(size)) {}
  /// Of one rank; true: it is here.
  bool take_from(std::size_t other, std::uint64_t number, std::span<std::byte> bytes);
  [[noreturn]] void fail(std::size_t other, std::string const& why) const;

  int rank_;
  std::vector<peer> peers_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/collective/direct_messages.ipp>
#endif
