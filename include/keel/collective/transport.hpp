// How bytes come from rank to rank: what a world of several ranks is made of.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// How the ranks' elements become one.
enum class reduction_kind : unsigned char { sum, min, max };

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// A collective that goes on beside this rank's own work. One that is never waited for goes on until its end.
class pending_collective {
 public:
  virtual ~pending_collective() = default;
  pending_collective(pending_collective const&) = delete;
  pending_collective& operator=(pending_collective const&) = delete;
  /// It has come to its end, and did not fail.
  virtual bool is_done() = 0;
  /// Returns at its end; throws as the collective would have. Once.
  virtual void wait() = 0;

 protected:
  pending_collective() = default;
};

/// All ranks make the same calls in the same order. Tensors are dense and contiguous, of the same shape and dtype on all ranks. What
/// cannot be done any more, because a rank is gone or too late, throws world_error (E25) that names the collective.
class transport {
 public:
  virtual ~transport() = default;
  transport(transport const&) = delete;
  transport& operator=(transport const&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// For the other ranks, in one collective.
  virtual std::chrono::milliseconds timeout() const = 0;

  /// In place; float, double, int32, int64 or uint8. Every rank has the same bits then.
  virtual void all_reduce(at::Tensor& tensor, reduction_kind how) = 0;
  /// The same, which does not wait for the others where it can be avoided; null: it is done. The tensor is not touched before its end.
  virtual std::unique_ptr<pending_collective> begin_all_reduce(at::Tensor& tensor, reduction_kind how) {
    all_reduce(tensor, how);
    return nullptr;
  }
  /// `all` has a first dimension of size(), of what each rank has.
  virtual void all_gather(at::Tensor const& local, at::Tensor& all) = 0;
  virtual std::unique_ptr<pending_collective> begin_all_gather(at::Tensor const& local, at::Tensor& all) {
    all_gather(local, all);
    return nullptr;
  }
  /// An all-gather of some numbers, always as many, with the least delay.
  virtual std::unique_ptr<pending_collective> begin_agreement(at::Tensor const& local, at::Tensor& all) {
    return begin_all_gather(local, all);
  }
  virtual void broadcast(at::Tensor& tensor, int from) = 0;
  /// Both have a first dimension that size() divides: the r-th part of `from` becomes the rank()-th of rank r's `to`.
  virtual void all_to_all(at::Tensor const& from, at::Tensor& to) = 0;
  virtual void barrier() = 0;
  /// Nothing more will come from this rank: the others' collectives throw with these words. Throws nothing.
  virtual void abort(std::string const& why) noexcept = 0;
  /// The same from another thread, in the last moment of a process whose own one hangs: leaves the words, and nothing else.
  virtual void post_abort_message(std::string const& /*why*/) noexcept {}
  /// Publishes this rank's heartbeat and returns those of all ranks, in their order; may be called from another thread. -1: none published
  /// yet; heartbeat_not_polled: enough others poll that rank. Empty if the transport has no heartbeats; nullopt if the store does not answer
  /// within a second. Does not throw errors of other ranks.
  static constexpr std::int64_t heartbeat_not_polled = -3;
  virtual std::optional<std::vector<std::int64_t>> exchange_heartbeats(std::int64_t /*mine*/) {
    return std::vector<std::int64_t>();
  }
  /// There is a place to leave them, or no need of one.
  virtual bool supports_heartbeats() const { return true; }
  /// No collective waits longer than this for the others.
  virtual void limit(std::chrono::milliseconds /*longest*/) {}

 protected:
  transport() = default;
};

}  // namespace keel::detail::inline KEEL_MODE
