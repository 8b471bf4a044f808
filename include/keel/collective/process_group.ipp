// The bodies of process_group.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <cstdint>
#include <keel/collective/process_group.hpp>
#include <thread>

#include <keel/core/detail/body_begin.inc>

namespace keel::detail {

inline constexpr char const* words_key = "keel/given_up";

KEEL_BODY void leave_words(c10d::Store& store, int rank, std::string const& why) {
  std::string const words = "rank " + std::to_string(rank) + " has given up: " + why;
  store.compareSet(words_key, std::vector<std::uint8_t>(), std::vector<std::uint8_t>(words.begin(), words.end()));
}

/// Which ranks did not say within a second that this collective failed for them too, or that another did.
inline std::string who_is_missing(c10d::Store& store, int rank, int size, char const* what, std::int64_t number) {
  auto const key = [](int one) { return "keel/failed/" + std::to_string(one); };
  std::string const mine = what + (", its collective number " + std::to_string(number));
  store.set(key(rank), std::vector<std::uint8_t>(mine.begin(), mine.end()));
  std::vector<std::string> theirs(static_cast<std::size_t>(size));
  auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  std::string missing;
  do {
    missing.clear();
    for (int one = 0; one < size; ++one) {
      std::string& said = theirs[static_cast<std::size_t>(one)];
      if (said.empty() && store.check({key(one)})) {
        auto const bytes = store.get(key(one));
        said.assign(bytes.begin(), bytes.end());
      }
      if (said.empty()) missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(one);
    }
    if (!missing.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (!missing.empty() && std::chrono::steady_clock::now() < until);
  // Rank 0 may serve the store: it does not leave before the others have read there what they need.
  auto const read = [](int one) { return "keel/read/" + std::to_string(one); };
  store.set(read(rank), std::vector<std::uint8_t>(1));
  for (int one = 1; rank == 0 && one < size; ++one) {
    bool const comes = !theirs[static_cast<std::size_t>(one)].empty();
    auto const longest = until + std::chrono::seconds(1);
    while (comes && !store.check({read(one)}) && std::chrono::steady_clock::now() < longest)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (!missing.empty()) return missing + (missing.find(',') == std::string::npos ? " is" : " are") + " gone or hanging";
  for (int one = 0; one < size; ++one) {
    std::string const& said = theirs[static_cast<std::size_t>(one)];
    if (said != mine) return "rank " + std::to_string(one) + " is at " + said;
  }
  return "all ranks are there, and the network between them, or one that was too late, is the reason";
}

KEEL_BODY std::string words_of_failure(int rank, int size, char const* what, std::int64_t number, std::exception const& thrown,
                                       c10d::Store* store) {
  std::string reason = thrown.what();
  reason = reason.substr(0, reason.find('\n'));
  // Where in LibTorch's or Gloo's source is nothing for a user: "[../gloo/transport/tcp/pair.cc:589] ".
  if (reason.starts_with("[") && reason.find("] ") != std::string::npos) reason = reason.substr(reason.find("] ") + 2);
  std::string left;
  try {
    if (store != nullptr) {
      if (store->check({words_key})) {
        auto const bytes = store->get(words_key);
        left.assign(bytes.begin(), bytes.end());
      } else {
        left = who_is_missing(*store, rank, size, what, number);
      }
    }
  } catch (std::exception const&) {
    // The store is gone with the process that served it, which these words then say.
    left = "the store is gone, which rank 0 serves where no launcher does";
  }
  return "rank " + std::to_string(rank) + " of " + std::to_string(size) + " cannot complete " + what +
         ", its collective number " + std::to_string(number) + ": " +
         (left.empty() ? "a rank is gone, too late, or calls something else" : left) + " (" + reason +
         "). Look at what that rank said last, and start all of them again.";
}

}  // namespace keel::detail

#include <keel/core/detail/body_end.inc>
