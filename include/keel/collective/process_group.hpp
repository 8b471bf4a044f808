// A world on top of a c10d process group, which the program supplies or keel::join creates.
//     keel::world_of_ranks world = keel::over(group, 60s);
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <keel/collective/transport.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/core/error.hpp>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// A collective that a rank has called.
struct issued_collective {
  std::int64_t number = 0;  ///< from 1
  char const* what = "";
  std::int64_t elements = 0;  ///< of this rank's tensor; 0 if the collective has no tensor
};
/// The most recent collectives of a rank, newest first.
using issued_collectives = std::array<issued_collective, 16>;

/// Why a collective failed, deduced from this rank's call history, the backend's exception and what the other ranks published in the store.
struct collective_failure {
  bool is_different_collective = false;  ///< another rank called a different collective
  std::string message = {};

  char const* id() const { return is_different_collective ? "E26" : "E25"; }
};
collective_failure diagnose_failure(int rank, int size, issued_collective const& failed, issued_collectives const& called,
                                    std::exception const& thrown, c10::intrusive_ptr<c10d::Store> const& store);
/// Returns true if a rank has published a failure; false if none has, or if the store does not answer within 0.2 s.
bool has_any_rank_failed(c10::intrusive_ptr<c10d::Store> const& store,
                         std::shared_ptr<std::atomic<bool>> const& is_query_pending);
/// Publishes why this rank aborted; the first rank's message is kept. Waits at most one second for the store.
void store_failure_message(c10::intrusive_ptr<c10d::Store> const& store, int rank, std::string const& why);

/// Implements transport::exchange_heartbeats on a store. `is_query_pending` is true while the store has not answered an earlier query.
std::optional<std::vector<std::int64_t>> exchange_heartbeats_in(c10::intrusive_ptr<c10d::Store> const& store, int rank,
                                                                int size, std::int64_t local,
                                                                std::shared_ptr<std::atomic<bool>> const& is_query_pending);

/// A transport that may have a rendezvous store; store() returns null if it has none.
class store_provider {
 public:
  virtual ~store_provider() = default;
  store_provider(store_provider const&) = delete;
  store_provider& operator=(store_provider const&) = delete;
  virtual c10::intrusive_ptr<c10d::Store> store() const = 0;

 protected:
  store_provider() = default;
};

template <class Group>
class group_transport final : public transport, public store_provider {
 public:
  enum class place : unsigned char { anywhere, on_device };

  group_transport(c10::intrusive_ptr<Group> group, std::chrono::milliseconds timeout, c10::intrusive_ptr<c10d::Store> store,
                  place of_tensors = place::anywhere)
      : group_(std::move(group)),
        store_(std::move(store)),
        rank_(group_->getRank()),
        size_(group_->getSize()),
        timeout_(timeout),
        is_on_device_(of_tensors == place::on_device),
        is_gloo_(is_gloo(*group_)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  c10::intrusive_ptr<c10d::Store> store() const override { return store_; }
  std::chrono::milliseconds timeout() const override { return timeout_; }

  void all_reduce(at::Tensor& tensor, reduction_kind how) override { begin_all_reduce(tensor, how)->wait(); }
  std::unique_ptr<pending_collective> begin_all_reduce(at::Tensor& tensor, reduction_kind how) override {
    return begin("all_reduce", tensor.numel(), [&](Group& group) {
      std::vector<at::Tensor> tensors{tensor};
      c10d::AllreduceOptions options;
      options.reduceOp = how == reduction_kind::min   ? c10d::ReduceOp::MIN
                         : how == reduction_kind::max ? c10d::ReduceOp::MAX
                                                      : c10d::ReduceOp::SUM;
      options.timeout = timeout_;
      return group.allreduce(tensors, options);
    });
  }
  void all_gather(at::Tensor const& local, at::Tensor& all) override { begin_all_gather(local, all)->wait(); }
  std::unique_ptr<pending_collective> begin_all_gather(at::Tensor const& local, at::Tensor& all) override {
    return begin_all_gather("all_gather", local, all);
  }
  std::unique_ptr<pending_collective> begin_small_all_gather(at::Tensor const& local, at::Tensor& all) override {
    return begin_all_gather(control_all_gather, local, all);
  }
  void broadcast(at::Tensor& tensor, int from) override {
    begin("broadcast", tensor.numel(), [&](Group& group) {
      std::vector<at::Tensor> tensors{tensor};
      c10d::BroadcastOptions options;
      options.rootRank = from;
      options.timeout = timeout_;
      return group.broadcast(tensors, options);
    })->wait();
  }
  void all_to_all(at::Tensor const& from, at::Tensor& to) override { begin_all_to_all(from, to)->wait(); }
  std::unique_ptr<pending_collective> begin_all_to_all(at::Tensor const& from, at::Tensor& to) override {
    return begin("all_to_all", from.numel(), [&](Group& group) {
      at::Tensor input = from;
      std::vector<std::int64_t> equal_parts_of_input, equal_parts_of_output;
      c10d::AllToAllOptions options;
      options.timeout = timeout_;
      return group.alltoall_base(to, input, equal_parts_of_output, equal_parts_of_input, options);
    });
  }
  void barrier() override {
    begin("barrier", 0, [&](Group& group) {
      c10d::BarrierOptions options;
      options.timeout = timeout_;
      return group.barrier(options);
    })->wait();
  }
  void post_abort_message(std::string const& why) noexcept override {
    try {
      store_failure_message(store_, rank_, why);
    } catch (std::exception const&) {
      // The store is unreachable, so nothing can be published.
    }
  }
  std::optional<std::vector<std::int64_t>> exchange_heartbeats(std::int64_t local) override {
    return exchange_heartbeats_in(store_, rank_, size_, local, is_heartbeat_query_pending_);
  }
  bool supports_heartbeats() const override { return store_.defined(); }
  void limit(std::chrono::milliseconds longest) override {
    is_limited_ = is_limited_ || longest < timeout_;
    timeout_ = std::min(timeout_, longest);
  }
  void abort(std::string const& why) noexcept override {
    try {
      // If another rank aborted first, its reason is kept.
      if (!broken_.message.empty()) return;
      broken_.message = "rank " + std::to_string(rank_) + " has given up: " + why;
      store_failure_message(store_, rank_, why);
    } catch (std::exception const&) {
      // The store may be gone, together with the rank that served it. The other ranks then detect the closed connections.
    }
    // Closes the connections, so that the peers fail immediately instead of at the timeout.
    release_group();
  }

 private:
  using work = decltype(std::declval<Group&>().barrier());
  static bool is_completed(work const& one) noexcept {
    try {
      return one->isCompleted();
    } catch (std::exception const&) {
      // isCompleted() throws after a device error. It counts as not completed; wait() rethrows the error.
      return false;
    }
  }
  static constexpr char const* control_all_gather = "control all-gather";

  class tracked_work final : public pending_collective {
   public:
    explicit tracked_work(group_transport& of) : transport_(of), issued_(of.issued_.front()) {}
    void take(work begun) { work_ = std::move(begun); }
    bool is_done() override { return work_->isCompleted() && work_->isSuccess(); }
    void wait() override {
      transport_.require_sound();
      try {
        transport_.wait_for(work_);
      } catch (std::exception const& thrown) {
        transport_.fail(issued_, thrown);
      }
    }

   private:
    group_transport& transport_;
    issued_collective issued_;
    work work_;
  };

  std::unique_ptr<pending_collective> begin_all_gather(char const* what, at::Tensor const& local, at::Tensor& all) {
    return begin(what, local.numel(), [&](Group& group) {
      // NCCL's allgather into a list needs a temporary tensor of this size.
      if (is_on_device_) {
        at::Tensor whole = all.view({-1}), part = local.view({-1});
        return group._allgather_base(whole, part, c10d::AllgatherOptions());
      }
      std::vector<at::Tensor> inputs{local};
      std::vector<std::vector<at::Tensor>> outputs(1);
      for (int rank = 0; rank < size_; ++rank) outputs.front().push_back(all[rank].view_as(local));
      c10d::AllgatherOptions options;
      options.timeout = timeout_;
      return group.allgather(outputs, inputs, options);
    });
  }
  template <class Begin>
  std::unique_ptr<pending_collective> begin(char const* what, std::int64_t elements, Begin const& begin_in) {
    call(what, elements);
    auto begun = std::make_unique<tracked_work>(*this);
    std::erase_if(begun_, is_completed);
    try {
      at::NoGradGuard const no_grad;
      begun_.push_back(begin_in(*group_));
      begun->take(begun_.back());
    } catch (std::exception const& thrown) {
      fail(issued_.front(), thrown);
    }
    return begun;
  }
  void call(char const* what, std::int64_t elements) {
    require_sound();
    std::shift_right(issued_.begin(), issued_.end(), 1);
    issued_.front() = {++number_, what, elements};
  }
  /// Waits for a collective while polling the store for failures: a rank whose direct peers are alive but blocked would otherwise not
  /// notice that another rank is gone.
  void wait_for(work const& one) {
    // On a device, wait() without a timeout only synchronizes streams; with one, c10d may block the host until the device is done.
    if (is_on_device_ || !is_gloo_) {
      is_limited_ && !is_on_device_ ? one->wait(timeout_) : one->wait();
      return;
    }
    auto const deadline = std::chrono::steady_clock::now() + timeout_;
    for (;;) {
      try {
        one->wait(std::chrono::milliseconds(250));
        return;
      } catch (std::exception const&) {
        // Either the collective has failed, or the 250 ms have passed.
        if (one->isCompleted()) {
          one->wait();
          return;
        }
      }
      // LibTorch 1.13 applies only the timeout set when the group was created, so a shorter limit is enforced here.
      if (is_limited_ && std::chrono::steady_clock::now() >= deadline) throw std::runtime_error("it timed out");
      if (store_ && has_any_rank_failed(store_, is_failure_query_pending_) && !one->isCompleted())
        throw std::runtime_error("it failed on another rank");
    }
  }
  static bool is_gloo(Group const& group) {
    if constexpr (requires { group.getBackendName(); }) {
      try {
        return group.getBackendName() == "gloo";
      } catch (std::exception const&) {
        // The program's backend has no name.
      }
    }
    return false;
  }
  void require_sound() const {
    if (!broken_.message.empty() || !group_)
      throw world_error(broken_.id(),
                        "rank " + std::to_string(rank_) + " of " + std::to_string(size_) + ": " + broken_.message + ".");
  }
  /// Closes the group permanently, so that the peers fail immediately, and throws world_error with the diagnosis.
  [[noreturn]] void fail(issued_collective const& failed, std::exception const& thrown) {
    release_group();
    broken_ = diagnose_failure(rank_, size_, failed, issued_, thrown, store_);
    throw world_error(broken_.id(), broken_.message);
  }
  /// Destroys the group, or leaks it while a collective is pending, because its destructor would block.
  void release_group() noexcept {
    if (!std::all_of(begun_.begin(), begun_.end(), is_completed)) static_cast<void>(group_.release());
    begun_.clear();
    group_.reset();
  }

  c10::intrusive_ptr<Group> group_;
  c10::intrusive_ptr<c10d::Store> store_;
  int rank_, size_;
  std::chrono::milliseconds timeout_;
  bool is_on_device_;
  bool is_gloo_;
  bool is_limited_ = false;  ///< timeout_ is shorter than the group's own
  std::int64_t number_ = 0;
  issued_collectives issued_{};  ///< newest first
  std::vector<work> begun_;      ///< collectives that may still be pending
  collective_failure broken_;
  std::shared_ptr<std::atomic<bool>> is_heartbeat_query_pending_ = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<std::atomic<bool>> is_failure_query_pending_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Wraps a c10d process group in a world. Any backend works that supports the collectives called, on the device of their tensors. `timeout`
/// applies to each collective. A failing rank publishes its reason in `store`. Without a store the other ranks only detect that it exited,
/// and a trainer with keel::timeout::heartbeat throws error (E12). The threads of a Gloo group raise SIGPIPE when they write to a killed
/// rank, so create the group while SIGPIPE is blocked, as keel::join does.
template <class Group>
world_of_ranks over(c10::intrusive_ptr<Group> group, std::chrono::milliseconds timeout,
                    c10::intrusive_ptr<c10d::Store> store = {}) {
  // Several worlds may share a store. The ranks create them in the same order, so the number is the same on all ranks.
  if (store) {
    auto const before = store->add("keel/worlds/" + std::to_string(group->getRank()), 1);
    store = c10::make_intrusive<c10d::PrefixStore>("keel/world/" + std::to_string(before), std::move(store));
  }
  return world_of_ranks(std::make_shared<detail::group_transport<Group>>(std::move(group), timeout, std::move(store)));
}

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/collective/process_group.ipp>
#endif
