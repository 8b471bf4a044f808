// A world over a c10d group, that the program has or that keel::join builds.
//     keel::world_of_ranks world = keel::over(group, 60s);
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <keel/collective/transport.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/core/error.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace keel {

namespace detail {

/// What a collective that failed says: of the rank, what it did, what the group said of it, and what another rank has left in the store.
std::string words_of_failure(int rank, int size, char const* what, std::int64_t number, std::exception const& thrown,
                             c10::intrusive_ptr<c10d::Store> const& store);
/// For the other ranks; the first one's words stay. Where the store does not answer within a second, nothing is left.
void leave_words(c10::intrusive_ptr<c10d::Store> const& store, int rank, std::string const& why);

template <class Group>
class group_transport final : public transport {
 public:
  group_transport(c10::intrusive_ptr<Group> group, std::chrono::milliseconds timeout, c10::intrusive_ptr<c10d::Store> store)
      : group_(std::move(group)),
        store_(std::move(store)),
        rank_(group_->getRank()),
        size_(group_->getSize()),
        timeout_(timeout) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::chrono::milliseconds timeout() const override { return timeout_; }

  void all_reduce(at::Tensor& tensor, reduction_kind how) override {
    wait_for("all_reduce", [&](Group& group) {
      std::vector<at::Tensor> tensors{tensor};
      c10d::AllreduceOptions options;
      options.reduceOp = how == reduction_kind::min   ? c10d::ReduceOp::MIN
                         : how == reduction_kind::max ? c10d::ReduceOp::MAX
                                                      : c10d::ReduceOp::SUM;
      options.timeout = timeout_;
      return group.allreduce(tensors, options);
    });
  }
  void all_gather(at::Tensor const& mine, at::Tensor& all) override {
    wait_for("all_gather", [&](Group& group) {
      std::vector<at::Tensor> inputs{mine};
      std::vector<std::vector<at::Tensor>> outputs(1);
      for (int rank = 0; rank < size_; ++rank) outputs.front().push_back(all[rank].view_as(mine));
      c10d::AllgatherOptions options;
      options.timeout = timeout_;
      return group.allgather(outputs, inputs, options);
    });
  }
  void broadcast(at::Tensor& tensor, int from) override {
    wait_for("broadcast", [&](Group& group) {
      std::vector<at::Tensor> tensors{tensor};
      c10d::BroadcastOptions options;
      options.rootRank = from;
      options.timeout = timeout_;
      return group.broadcast(tensors, options);
    });
  }
  void all_to_all(at::Tensor const& from, at::Tensor& to) override {
    wait_for("all_to_all", [&](Group& group) {
      at::Tensor input = from;
      std::vector<std::int64_t> equal_parts_of_input, equal_parts_of_output;
      c10d::AllToAllOptions options;
      options.timeout = timeout_;
      return group.alltoall_base(to, input, equal_parts_of_output, equal_parts_of_input, options);
    });
  }
  void barrier() override {
    wait_for("barrier", [&](Group& group) {
      c10d::BarrierOptions options;
      options.timeout = timeout_;
      return group.barrier(options);
    });
  }
  void leave_last_words(std::string const& why) noexcept override {
    try {
      leave_words(store_, rank_, why);
    } catch (std::exception const&) {
      // The store is gone, and with it who would read them.
    }
  }
  void limit(std::chrono::milliseconds longest) override {
    is_limited_ = is_limited_ || longest < timeout_;
    timeout_ = std::min(timeout_, longest);
  }
  void abort(std::string const& why) noexcept override {
    try {
      // Whom another rank's end has brought here does not say that it was the first.
      if (!broken_.empty()) return;
      broken_ = "rank " + std::to_string(rank_) + " has given up: " + why;
      leave_words(store_, rank_, why);
    } catch (std::exception const&) {
      // The store may be gone with the rank that served it: the others learn of this end by the closed connection.
    }
    // Closes the connections, so that who waits for this rank does not wait for the whole timeout.
    group_.reset();
  }

 private:
  template <class Begin>
  void wait_for(char const* what, Begin const& begin) {
    ++number_;
    if (!broken_.empty() || !group_)
      throw world_error("E25", "rank " + std::to_string(rank_) + " of " + std::to_string(size_) + ": " + broken_ + ".");
    decltype(begin(*group_)) work;
    try {
      at::NoGradGuard const no_grad;
      work = begin(*group_);
      // LibTorch 1.13 hands Gloo the timeout that the group was made with, and no other.
      is_limited_ ? work->wait(timeout_) : work->wait();
    } catch (std::exception const& thrown) {
      // A group that has failed once is closed for good; the others are to know at once. One that still waits would make its end wait too: it
      // stays until the process ends.
      if (work && !work->isCompleted()) static_cast<void>(group_.release());
      group_.reset();
      broken_ = words_of_failure(rank_, size_, what, number_, thrown, store_);
      throw world_error("E25", broken_);
    }
  }

  c10::intrusive_ptr<Group> group_;
  c10::intrusive_ptr<c10d::Store> store_;
  int rank_, size_;
  std::chrono::milliseconds timeout_;
  bool is_limited_ = false;  ///< to less than the group's own
  std::int64_t number_ = 0;
  std::string broken_;
};

}  // namespace detail

/// A world over a group of c10d's, any backend's that has these collectives for the device of the tensors. `timeout` is for each collective.
/// `store`: where a rank that ends leaves its reason for the others; without one they know that it is gone, and not why. The threads of a
/// Gloo group raise SIGPIPE when they write to a rank that was killed: make it, as keel::join does, while SIGPIPE is blocked.
template <class Group>
world_of_ranks over(c10::intrusive_ptr<Group> group, std::chrono::milliseconds timeout,
                    c10::intrusive_ptr<c10d::Store> store = {}) {
  return world_of_ranks(std::make_shared<detail::group_transport<Group>>(std::move(group), timeout, std::move(store)));
}

}  // namespace keel

#if !__has_include(<keel_bodies_are_compiled>)
#include <keel/collective/process_group.ipp>
#endif
