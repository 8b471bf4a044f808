// Definitions for join.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/version.h>

// CMake sets it for all files of a program; without CMake it depends on whether the headers are found.
#ifndef KEEL_GLOO
#if __has_include(<gloo/algorithm.h>)
#define KEEL_GLOO 1
#else
#define KEEL_GLOO 0
#endif
#endif

#if KEEL_GLOO
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#define KEEL_DEFINES_GLOO
#endif
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef KEEL_DEFINES_GLOO
#undef USE_C10D_GLOO
#undef KEEL_DEFINES_GLOO
#endif
#endif

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <keel/collective/call_with_timeout.hpp>
#include <keel/collective/join.hpp>
#include <keel/collective/process_group.hpp>
#include <keel/collective/served_address.hpp>
#include <keel/core/error.hpp>
#include <keel/core/version.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

#if KEEL_GLOO

namespace keel::detail::inline KEEL_MODE {

/// Returns a description of the settings that must be equal on all ranks.
inline std::string world_signature(launch_info const& how) {
  return std::to_string(how.size) + " ranks, LibTorch " + TORCH_VERSION + ", keel " + version;
}

/// Call before throwing a mismatch error. Rank 0, which may serve the store, waits up to two seconds for the others to read its settings;
/// the other ranks mark that they have read them.
inline void wait_until_mismatch_is_read(c10d::Store& store, launch_info const& how) {
  auto const key = [](int rank) { return "seen/" + std::to_string(rank); };
  try {
    if (how.rank != 0) return store.set(key(how.rank), std::vector<std::uint8_t>{1});
    auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    for (int rank = 1; rank < how.size; ++rank) {
      auto const left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      store.wait({key(rank)}, std::max(left, std::chrono::milliseconds(10)));
    }
  } catch (std::exception const&) {
    // A rank that does not read them fails for another reason, which it reports itself.
  }
}

/// Logs on stderr which ranks this one waits for: after five seconds, and then once a minute.
class wait_logger {
 public:
  explicit wait_logger(launch_info const& how) : how_(how) {}
  template <class Describe>
  void poll(Describe const& describe) {
    auto const now = clock::now();
    if (now < next_) return;
    next_ = now + std::chrono::minutes(1);
    auto const seconds = std::chrono::duration_cast<std::chrono::seconds>(now - began_).count();
    std::string const message = describe();
    std::fprintf(stderr, "keel: rank %d of %d has waited %lld s at %s:%d %s\n", how_.rank, how_.size,
                 static_cast<long long>(seconds), how_.address.c_str(), how_.port, message.c_str());
  }

 private:
  using clock = std::chrono::steady_clock;
  launch_info const& how_;
  clock::time_point began_ = clock::now();
  clock::time_point next_ = began_ + std::chrono::seconds(5);
};

/// Lists the ranks that have joined, or those that have not, as "1, 2". Ranks below `first` are known to have joined. If the store is
/// unreachable, only those and this rank are listed as joined.
inline std::string list_ranks(c10d::Store& store, launch_info const& how, int first, bool are_here) {
  std::string all;
  for (int rank = 0; rank < how.size; ++rank) {
    bool is_here = rank < first || rank == how.rank;
    try {
      is_here = is_here || store.check({"here/" + std::to_string(rank)});
    } catch (std::exception const&) {
      // The store is unreachable.
    }
    if (is_here == are_here) all += (all.empty() ? "" : ", ") + std::to_string(rank);
  }
  return all;
}

/// Prefixes a list such as "1, 2" with "rank " or "ranks ".
inline std::string name_ranks(std::string const& list) {
  return (list.find(',') == std::string::npos ? "rank " : "ranks ") + list;
}

/// Blocks until every rank has joined. Throws world_error (E24).
inline void wait_for_all_ranks(c10d::Store& store, launch_info const& how, std::chrono::milliseconds timeout) {
  auto const key = [](int rank) { return "here/" + std::to_string(rank); };
  std::string const local = world_signature(how);
  if (store.add("count/" + std::to_string(how.rank), 1) > 1)
    throw world_error("E24", "two processes joined as rank " + std::to_string(how.rank) + " at " + how.address + ":" +
                                 std::to_string(how.port) +
                                 ". Start each rank once, or use another MASTER_PORT for the second run.");
  store.set(key(how.rank), std::vector<std::uint8_t>(local.begin(), local.end()));
  auto const began = std::chrono::steady_clock::now();
  auto const deadline = began + timeout;
  wait_logger notice(how);
  for (int rank = 0; rank < how.size; ++rank) {
    std::vector<std::uint8_t> bytes;
    try {
      // Poll with check(): a wait() that times out leaves an unread response in the store's connection.
      while (!store.check({key(rank)})) {
        if (std::chrono::steady_clock::now() >= deadline) throw std::runtime_error("timeout");
        notice.poll([&] {
          return "for " + name_ranks(list_ranks(store, how, rank, false)) + "; joined: " + list_ranks(store, how, rank, true) +
                 ".";
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      bytes = store.get(key(rank));
    } catch (std::exception const&) {
      throw world_error(
          "E24", "rank " + std::to_string(how.rank) + " of " + std::to_string(how.size) + ": " +
                     name_ranks(list_ranks(store, how, rank, false)) + " did not join at " + how.address + ":" +
                     std::to_string(how.port) + " within " +
                     std::to_string(
                         std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - began).count()) +
                     " s. Check their output, then restart all ranks.");
    }
    std::string const remote(bytes.begin(), bytes.end());
    if (remote != local) {
      wait_until_mismatch_is_read(store, how);
      throw world_error("E24", "rank " + std::to_string(how.rank) + " (" + local + ") and rank " + std::to_string(rank) + " (" +
                                   remote + ") do not match. Start the same program on all ranks.");
    }
  }
}

[[noreturn]] inline void throw_store_timeout(launch_info const& how, std::chrono::milliseconds timeout) {
  throw world_error(
      "E24", "rank " + std::to_string(how.rank) + " of " + std::to_string(how.size) + ": the rendezvous store at " +
                 how.address + ":" + std::to_string(how.port) + ", which rank 0 or the launcher serves, did not respond for " +
                 std::to_string(timeout.count() / 1000) + " s. Check that process and the network, then restart all ranks.");
}

/// Returns the result of `ask`. Throws world_error (E24) if the store does not answer within the timeout.
template <class Answer>
Answer call_store(launch_info const& how, std::chrono::milliseconds timeout, std::function<Answer()> const& ask) {
  // One second longer than the store's own timeout, whose error message is more specific.
  std::optional<Answer> found = call_with_timeout<Answer>(timeout + std::chrono::seconds(1), ask);
  if (found) return *std::move(found);
  throw_store_timeout(how, timeout);
}

/// Blocks SIGPIPE in this thread, and in the threads started during its lifetime, which inherit the mask. Gloo's threads write to the
/// socket of a killed rank; SIGPIPE would terminate the other ranks without a message. Discards a SIGPIPE that became pending for this
/// thread.
class sigpipe_blocker {
 public:
  sigpipe_blocker() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  sigpipe_blocker(sigpipe_blocker const&) = delete;
  sigpipe_blocker& operator=(sigpipe_blocker const&) = delete;
  ~sigpipe_blocker() {
    timespec const at_once{};
    bool const is_first = sigismember(&before_, SIGPIPE) == 0;
    while (is_first && ::sigtimedwait(&pipe_, nullptr, &at_once) == SIGPIPE) continue;
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_{}, before_{};
};

inline std::shared_ptr<::gloo::transport::Device> device_for(launch_info const& how) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): LibTorch reads the environment the same way
  if (char const* const name = std::getenv("GLOO_SOCKET_IFNAME")) return c10d::ProcessGroupGloo::createDeviceForInterface(name);
  bool const is_local = how.address == "127.0.0.1" || how.address == "localhost" || how.address == "::1";
  return is_local ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                  : c10d::ProcessGroupGloo::createDefaultDevice();
}

/// A view of the store for one connection attempt. Its wait() polls, so other threads can use the store meanwhile, and an abandoned attempt
/// stops waiting.
class attempt_store : public c10d::PrefixStore {
 public:
  attempt_store(int attempt, c10::intrusive_ptr<c10d::Store> of, std::chrono::milliseconds timeout)
      : PrefixStore("attempt-" + std::to_string(attempt), std::move(of)), timeout_(timeout) {}
  using PrefixStore::wait;
  void wait(std::vector<std::string> const& keys) override { wait(keys, timeout_); }
  void wait(std::vector<std::string> const& keys, std::chrono::milliseconds const& timeout) override {
    auto const deadline = std::chrono::steady_clock::now() + std::min(timeout, timeout_);
    while (!check(keys)) {
      if (is_over_) throw std::runtime_error("this attempt is over");
      if (std::chrono::steady_clock::now() >= deadline)
        throw std::runtime_error("no answer for " + std::to_string(std::min(timeout, timeout_).count() / 1000) + " s");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  std::vector<std::uint8_t> get(std::string const& key) override {
    wait({key}, timeout_);
    return PrefixStore::get(key);
  }

  /// Publishes whether this rank is connected and returns true if all ranks are; false as soon as one is not. Collective. Throws
  /// std::runtime_error if a rank has published nothing by `deadline`.
  bool are_all_connected(launch_info const& how, bool is_connected, std::chrono::steady_clock::time_point deadline) {
    auto const key = [](int rank) { return "connected/" + std::to_string(rank); };
    std::vector<std::uint8_t> const yes{1};
    if (!is_connected) set(failed_key, yes);
    set(key(how.rank), yes);
    for (int rank = 0; rank < how.size;) {
      if (has_failed()) return false;
      if (check({key(rank)})) {
        ++rank;
      } else if (std::chrono::steady_clock::now() >= deadline) {
        throw std::runtime_error("rank " + std::to_string(rank) + " did not report whether it is connected");
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
    return !has_failed();
  }
  bool has_failed() { return check({failed_key}); }
  void cancel_attempt() { is_over_ = true; }

 private:
  static constexpr char const* failed_key = "failed";
  std::chrono::milliseconds timeout_;
  std::atomic<bool> is_over_{false};
};

inline world_of_ranks connect(c10::intrusive_ptr<c10d::Store> const& store, launch_info const& how,
                              std::chrono::milliseconds timeout) {
  // LibTorch 1.13 uses this timeout for all later collectives of the group.
  auto const gloo_options = c10d::ProcessGroupGloo::Options::create(timeout);
  gloo_options->devices.push_back(device_for(how));
  auto const group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, how.rank, how.size, gloo_options);
  // If an unrelated process has taken one of the connections, this first collective fails.
  group->barrier()->wait();
  return world_of_ranks(std::make_shared<group_transport<c10d::ProcessGroupGloo>>(group, timeout, store));
}

/// Connects the Gloo groups once every rank has joined the store. An unrelated connection to a Gloo listener, such as a port scan, takes a
/// rank's place. All ranks then retry with new listeners, up to three attempts. Collective. Throws std::runtime_error within the timeout.
inline world_of_ranks connect_all_ranks(c10::intrusive_ptr<c10d::Store> const& store, launch_info const& how,
                                        std::chrono::milliseconds timeout) {
  using std::chrono::milliseconds;
  auto const now = [] { return std::chrono::steady_clock::now(); };
  auto const deadline = now() + timeout - milliseconds(200);
  std::string message = "another rank cannot connect";
  constexpr int attempts = 3;
  for (int attempt = 1;; ++attempt) {
    // Bounds all attempts but the last: a rank whose place is taken would otherwise wait for the whole timeout.
    auto const left = std::chrono::duration_cast<milliseconds>(deadline - now());
    auto const limit = attempt < attempts ? std::min<milliseconds>(timeout / 4, std::chrono::seconds(10)) : left;
    auto const own = c10::make_intrusive<attempt_store>(attempt, store, timeout);
    std::optional<world_of_ranks> world;
    try {
      world = call_with_timeout<world_of_ranks>(
          std::max(limit, milliseconds(1)), [own, how, timeout] { return connect(own, how, timeout); },
          [own] { return own->has_failed(); });
    } catch (std::exception const& thrown) {
      message = thrown.what();
    }
    if (!world) own->cancel_attempt();
    bool const are_all_connected = own->are_all_connected(how, world.has_value(), deadline);
    if (are_all_connected && world) return *std::move(world);
    if (attempt == attempts) throw std::runtime_error(message);
  }
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY world_of_ranks join(launch_info const& how, join_options const& options) {
  if (how.size == 1) return world_of_ranks();
  if (how.address.empty())
    throw world_error(
        "E24", how.launcher + " started " + std::to_string(how.size) +
                   " ranks, but MASTER_ADDR is not set. Set it to the host of rank 0, and MASTER_PORT to a free port there.");
  detail::sigpipe_blocker const in_new_threads;
  auto const place = how.address + ":" + std::to_string(how.port);
  using any_store = c10::intrusive_ptr<c10d::Store>;
  any_store store;
  try {
    store = detail::call_store<any_store>(how, options.timeout, [how, options]() -> any_store {
      c10d::TCPStoreOptions at;
      at.port = static_cast<std::uint16_t>(how.port);
      at.isServer = how.rank == 0 && !how.has_external_store;
      at.numWorkers = how.size;
      at.waitWorkers = false;
      at.timeout = options.timeout;
      if (!at.isServer) {
        detail::wait_logger notice(how);
        auto const on_retry = [&notice] {
          notice.poll([] { return "for rank 0 or the launcher, which is not listening there yet."; });
        };
        if (!detail::wait_until_served(how.address, how.port, std::chrono::steady_clock::now() + options.timeout, on_retry))
          detail::throw_store_timeout(how, options.timeout);
      }
      // Debian's LibTorch has no libuv, but newer versions use it by default.
      [](auto& later) {
        if constexpr (requires { later.useLibUV; }) later.useLibUV = false;
      }(at);
      auto const whole = c10::make_intrusive<c10d::TCPStore>(how.address, at);
      whole->setTimeout(options.timeout);
      return c10::make_intrusive<c10d::PrefixStore>("keel/" + how.run_id + "/" + std::to_string(how.restart), whole);
    });
  } catch (world_error const&) {
    throw;
  } catch (std::exception const& thrown) {
    std::string const message = thrown.what();
    throw world_error(
        "E24", "rank " + std::to_string(how.rank) + " of " + std::to_string(how.size) + " cannot reach the other ranks at " +
                   place + " (" + message.substr(0, message.find('\n')) +
                   "). Set MASTER_ADDR to the machine of rank 0 and MASTER_PORT to a free port there, the same for all ranks.");
  }
  detail::call_store<bool>(how, options.timeout, [store, how, options] {
    detail::wait_for_all_ranks(*store, how, options.timeout);
    return true;
  });
  try {
    return detail::call_store<world_of_ranks>(
        how, options.timeout, [store, how, options] { return detail::connect_all_ranks(store, how, options.timeout); });
  } catch (world_error const&) {
    throw;
  } catch (std::exception const& thrown) {
    std::string const message = thrown.what();
    throw world_error("E24", "rank " + std::to_string(how.rank) + " of " + std::to_string(how.size) +
                                 " cannot connect to the other ranks (" + message.substr(0, message.find('\n')) +
                                 "). On a machine with several network interfaces, set GLOO_SOCKET_IFNAME to the one to use.");
  }
}

}  // namespace keel::inline KEEL_MODE

#else

namespace keel::inline KEEL_MODE {

KEEL_BODY world_of_ranks join(launch_info const& how, join_options const& /*options*/) {
  if (how.size == 1) return world_of_ranks();
  throw world_error("E24", how.launcher + " started " + std::to_string(how.size) +
                               " ranks, but this program was compiled without Gloo's headers, which several ranks require. "
                               "Install libgloo-dev, then rerun cmake and rebuild, or pass your own group to keel::over.");
}

}  // namespace keel::inline KEEL_MODE

#endif

#undef KEEL_GLOO

#include <keel/libtorch/detail/body_end.inc>
