// Definitions for in_process.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <condition_variable>
#include <keel/collective/in_process.hpp>
#include <keel/collective/reduce_into.hpp>
#include <keel/core/error.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/memory/counting_allocator.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// The arguments of one rank's collective call.
struct rank_call {
  enum class kind : unsigned char { all_reduce, all_gather, broadcast, all_to_all, barrier };
  kind what = kind::barrier;
  reduction_kind how = reduction_kind::sum;
  int root = 0;
  std::int64_t elements = 0;
  at::ScalarType dtype = at::kByte;
  at::Tensor from, to;

  bool is_same(rank_call const& other) const {
    return what == other.what && how == other.how && root == other.root && elements == other.elements && dtype == other.dtype;
  }
  std::string words() const {
    char const* const names[] = {"all_reduce", "all_gather", "broadcast", "all_to_all", "barrier"};
    std::string const name = names[static_cast<std::size_t>(what)];
    if (what == kind::barrier) return name;
    return name + " of " + std::to_string(elements) + " elements of " + c10::toString(dtype);
  }
};

/// Unwinds the thread of a killed rank. Not derived from std::exception, so that bodies do not catch it as an error.
struct rank_killed {};

/// Schedules the ranks of one process and performs their collectives.
class rank_threads {
 public:
  rank_threads(int size, in_process_options const& options)
      : options_(options), draw_(options.seed), ranks_(static_cast<std::size_t>(size)) {}
  rank_threads(rank_threads const&) = delete;
  rank_threads& operator=(rank_threads const&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }

  std::vector<std::exception_ptr> run(std::function<void(int)> const& body) {
    random_snapshot const before = random_snapshot::take(at::kCPU);
    for (rank_state& rank : ranks_) rank.random = before;
    int const threads = at::get_num_threads();
    std::vector<std::exception_ptr> threw(ranks_.size());
    std::vector<std::thread> all;
    {
      std::unique_lock lock(mutex_);
      for (int rank = 0; rank < size(); ++rank) {
        all.emplace_back([&, rank] {
          at::set_num_threads(threads);
          begin(rank);
          std::string how;
          try {
            body(rank);
            how = "has ended";
          } catch (rank_killed const&) {
            how = "is gone";
          } catch (std::exception const& thrown) {
            threw[static_cast<std::size_t>(rank)] = std::current_exception();
            how = std::string("threw: ") + thrown.what();
          } catch (...) {  // returned to the caller
            threw[static_cast<std::size_t>(rank)] = std::current_exception();
            how = "threw";
          }
          end(rank, how);
        });
      }
      schedule_next_rank(lock);
    }
    for (std::thread& one : all) one.join();
    before.restore();
    return threw;
  }

  /// Performs a collective: waits until all ranks have called it. Throws world_error (E25) if a rank can no longer call it, (E26) if the
  /// calls differ.
  void call(int rank, rank_call local) {
    std::unique_lock lock(mutex_);
    // Allocations in this function belong to the test harness, not to the program under test.
    memory::detail::not_refused const of_test;
    rank_state& self = at(rank);
    // A killed process would not run destructors, so a collective called while this thread unwinds fails.
    if (self.is_killed) throw rank_killed();
    ++self.calls;
    for (rank_fault const& fault : options_.faults) {
      if (fault.rank != rank || fault.collective != self.calls) continue;
      self.is_killed = true;
      if (fault.what == rank_fault::kind::hang) {
        self.now = state::hanging;
        schedule_next_rank(lock);
        wait_for_turn(lock, rank);
      }
      throw rank_killed();
    }
    require_sound(rank);
    if (waiting_ > 0 && !local.is_same(open_)) {
      is_mismatch_ = true;
      fail("rank " + std::to_string(rank) + " calls " + local.words() + " as collective number " + std::to_string(self.calls) +
           ", but rank " + std::to_string(first_) + " has called " + open_.words());
      require_sound(rank);
    }
    if (waiting_ == 0) {
      open_ = local;
      first_ = rank;
    }
    self.call = std::move(local);
    ++waiting_;
    if (waiting_ == size()) {
      perform();
      waiting_ = 0;
      for (rank_state& one : ranks_) one.now = state::ready;
    } else {
      self.now = state::waiting;
    }
    schedule_next_rank(lock);
    wait_for_turn(lock, rank);
    if (self.failed) require_sound(rank);
  }

  void abort(int rank, std::string const& why) {
    std::unique_lock const lock(mutex_);
    if (broken_.empty() && !at(rank).is_killed) fail("rank " + std::to_string(rank) + " has given up: " + why);
  }

 private:
  enum class state : unsigned char { ready, waiting, hanging, ended };
  struct rank_state {
    state now = state::ready;
    bool failed = false;  ///< its collective will not complete
    bool is_killed = false;
    std::int64_t calls = 0;
    std::string ending;
    random_snapshot random;
    rank_call call;
    std::condition_variable turn;
  };

  rank_state& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  void begin(int rank) {
    std::unique_lock lock(mutex_);
    wait_for_turn(lock, rank);
  }
  void end(int rank, std::string const& how) {
    std::unique_lock lock(mutex_);
    at(rank).now = state::ended;
    at(rank).ending = how;
    schedule_next_rank(lock);
  }

  void require_sound(int rank) {
    if (!broken_.empty())
      throw world_error(is_mismatch_ ? "E26" : "E25",
                        "rank " + std::to_string(rank) + " of " + std::to_string(size()) + ": " + broken_ + ".");
  }
  /// Marks the world as broken: no collective completes from now on. Releases the waiting ranks.
  void fail(std::string const& why) {
    broken_ = why;
    for (rank_state& one : ranks_) {
      if (one.now != state::waiting) continue;
      one.now = state::ready;
      one.failed = true;
    }
    waiting_ = 0;
  }

  /// Selects the next rank among those that can run. If none can and some wait, fails their collective.
  void schedule_next_rank(std::unique_lock<std::mutex>&) {
    if (running_ >= 0) at(running_).random = random_snapshot::take(at::kCPU);
    running_ = -1;
    std::vector<int> ready = ranks_in_state(state::ready);
    if (ready.empty() && waiting_ > 0) {
      fail("it is waiting in " + open_.words() + ", and " + missing());
      ready = ranks_in_state(state::ready);
    }
    // Hanging ranks are released once all others have ended.
    if (ready.empty()) ready = ranks_in_state(state::hanging);
    if (ready.empty()) return;
    running_ = ready[std::uniform_int_distribution<std::size_t>(0, ready.size() - 1)(draw_)];
    at(running_).random.restore();
    at(running_).turn.notify_one();
  }
  void wait_for_turn(std::unique_lock<std::mutex>& lock, int rank) {
    at(rank).turn.wait(lock, [&] { return running_ == rank; });
  }
  std::vector<int> ranks_in_state(state now) {
    std::vector<int> found;
    for (int rank = 0; rank < size(); ++rank) {
      if (at(rank).now == now) found.push_back(rank);
    }
    return found;
  }
  std::string missing() {
    std::string words;
    for (int rank = 0; rank < size(); ++rank) {
      rank_state const& one = at(rank);
      if (one.now != state::hanging && one.now != state::ended) continue;
      words += (words.empty() ? "rank " : ", rank ") + std::to_string(rank) + " " +
               (one.now == state::hanging ? "has not called it" : one.ending);
    }
    return words;
  }

  void perform() {
    at::NoGradGuard const no_grad;
    std::int64_t const count = size();
    switch (open_.what) {
      case rank_call::kind::barrier:
        break;
      case rank_call::kind::broadcast:
        for (rank_state& one : ranks_) {
          if (&one != &at(open_.root)) one.call.to.copy_(at(open_.root).call.to);
        }
        break;
      case rank_call::kind::all_reduce: {
        at::Tensor sum = ranks_.front().call.to.clone();
        for (std::size_t i = 1; i < ranks_.size(); ++i) reduce_into(sum, ranks_[i].call.to, open_.how);
        for (rank_state& one : ranks_) one.call.to.copy_(sum);
        break;
      }
      case rank_call::kind::all_gather:
        for (rank_state& to : ranks_) {
          for (std::int64_t i = 0; i < count; ++i)
            to.call.to[i].copy_(at(static_cast<int>(i)).call.from.view_as(to.call.to[i]));
        }
        break;
      case rank_call::kind::all_to_all:
        for (std::int64_t to = 0; to < count; ++to) {
          at::Tensor const parts = at(static_cast<int>(to)).call.to.view({count, -1});
          for (std::int64_t from = 0; from < count; ++from)
            parts[from].copy_(at(static_cast<int>(from)).call.from.view({count, -1})[to]);
        }
        break;
    }
    for (rank_state& one : ranks_) one.call.from = one.call.to = at::Tensor();
  }

  in_process_options options_;
  std::mutex mutex_;
  std::mt19937_64 draw_;
  std::vector<rank_state> ranks_;
  int running_ = -1;
  int waiting_ = 0;  ///< ranks in the open collective
  int first_ = 0;    ///< the first rank in it
  rank_call open_;
  bool is_mismatch_ = false;
  std::string broken_;  ///< why collectives can no longer complete; empty: not broken
};

class thread_transport final : public transport {
 public:
  thread_transport(rank_threads& all, int rank) : all_(all), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return all_.size(); }
  std::chrono::milliseconds timeout() const override { return std::chrono::milliseconds(0); }

  void all_reduce(at::Tensor& tensor, reduction_kind how) override {
    all_.call(rank_, {.what = rank_call::kind::all_reduce,
                      .how = how,
                      .elements = tensor.numel(),
                      .dtype = tensor.scalar_type(),
                      .from = {},
                      .to = tensor});
  }
  void all_gather(at::Tensor const& local, at::Tensor& all) override {
    all_.call(rank_, {.what = rank_call::kind::all_gather,
                      .elements = local.numel(),
                      .dtype = local.scalar_type(),
                      .from = local,
                      .to = all});
  }
  void broadcast(at::Tensor& tensor, int from) override {
    all_.call(rank_, {.what = rank_call::kind::broadcast,
                      .root = from,
                      .elements = tensor.numel(),
                      .dtype = tensor.scalar_type(),
                      .from = {},
                      .to = tensor});
  }
  void all_to_all(at::Tensor const& from, at::Tensor& to) override {
    all_.call(
        rank_,
        {.what = rank_call::kind::all_to_all, .elements = from.numel(), .dtype = from.scalar_type(), .from = from, .to = to});
  }
  void barrier() override { all_.call(rank_, {}); }
  void abort(std::string const& why) noexcept override {
    try {
      all_.abort(rank_, why);
    } catch (std::exception const&) {
      // Out of memory for the message: the others fail when this rank's thread ends.
    }
  }

 private:
  rank_threads& all_;
  int rank_;
};

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY std::vector<std::exception_ptr> try_in_process(int ranks, std::function<void(world_of_ranks)> const& body,
                                                         in_process_options const& options) {
  if (ranks < 1) throw error("E12", "a world needs at least one rank, not " + std::to_string(ranks) + ". Pass 1 or more.");
  detail::rank_threads all(ranks, options);
  return all.run([&](int rank) { body(world_of_ranks(std::make_shared<detail::thread_transport>(all, rank))); });
}

KEEL_BODY void run_in_process(int ranks, std::function<void(world_of_ranks)> const& body, in_process_options const& options) {
  auto const threw = try_in_process(ranks, body, options);
  std::exception_ptr first;
  for (std::exception_ptr const& one : threw) {
    if (!one) continue;
    if (!first) first = one;
    try {
      std::rethrow_exception(one);
    } catch (world_error const& thrown) {
      // E25 only reports that another rank failed, so prefer that rank's own exception.
      if (thrown.id() != "E25") throw;
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
