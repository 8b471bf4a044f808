// The interface between a multi-rank world and its communication backend.
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

/// The elementwise operation of an all-reduce.
enum class reduction_kind : unsigned char { sum, min, max };

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// A collective that runs concurrently with this rank's other work. It completes even if wait() is never called.
class pending_collective {
 public:
  virtual ~pending_collective() = default;
  pending_collective(pending_collective const&) = delete;
  pending_collective& operator=(pending_collective const&) = delete;
  /// Returns true if the collective has completed successfully. Does not block.
  virtual bool is_done() = 0;
  /// Blocks until the collective completes; throws as the blocking call would. Call at most once.
  virtual void wait() = 0;

 protected:
  pending_collective() = default;
};

/// Abstract base of communication backends. All ranks must make the same calls in the same order. Tensors must be dense and contiguous,
/// with the same shape and dtype on all ranks. Collectives throw world_error (E25), which names the collective, if a rank exited or timed
/// out.
class transport {
 public:
  virtual ~transport() = default;
  transport(transport const&) = delete;
  transport& operator=(transport const&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// How long one collective waits for the other ranks.
  virtual std::chrono::milliseconds timeout() const = 0;

  /// Reduces in place. Takes float, double, int32, int64 or uint8. The result is bitwise identical on all ranks.
  virtual void all_reduce(at::Tensor& tensor, reduction_kind how) = 0;
  /// Starts an all_reduce without waiting for the others, if the backend can. Returns null if it is already complete. The caller must not
  /// touch the tensor until it completes.
  virtual std::unique_ptr<pending_collective> begin_all_reduce(at::Tensor& tensor, reduction_kind how) {
    all_reduce(tensor, how);
    return nullptr;
  }
  /// Gathers the tensors of all ranks into `all`, whose first dimension is size(), in rank order.
  virtual void all_gather(at::Tensor const& local, at::Tensor& all) = 0;
  virtual std::unique_ptr<pending_collective> begin_all_gather(at::Tensor const& local, at::Tensor& all) {
    all_gather(local, all);
    return nullptr;
  }
  /// Starts a low-latency all-gather of a few numbers; every call must use the same count.
  virtual std::unique_ptr<pending_collective> begin_small_all_gather(at::Tensor const& local, at::Tensor& all) {
    return begin_all_gather(local, all);
  }
  virtual void broadcast(at::Tensor& tensor, int from) = 0;
  /// Copies the r-th part of `from` to the rank()-th part of `to` on rank r. size() must divide the first dimension of both.
  virtual void all_to_all(at::Tensor const& from, at::Tensor& to) = 0;
  virtual std::unique_ptr<pending_collective> begin_all_to_all(at::Tensor const& from, at::Tensor& to) {
    all_to_all(from, to);
    return nullptr;
  }
  virtual void barrier() = 0;
  /// Aborts communication: later collectives of this rank throw, and the collectives of the others throw with the message `why`.
  virtual void abort(std::string const& why) noexcept = 0;
  /// Publishes `why` for the other ranks without closing connections. May be called from another thread, when the training thread hangs and
  /// the process is about to exit.
  virtual void post_abort_message(std::string const& /*why*/) noexcept {}
  /// Publishes this rank's heartbeat and returns those of all ranks, in their order; may be called from another thread. An entry is -1 if
  /// that rank has not published a heartbeat yet, and heartbeat_not_polled if this rank leaves polling it to others. Empty if the transport
  /// has no heartbeats; nullopt if the store does not answer within a second. Does not throw if another rank has failed.
  static constexpr std::int64_t heartbeat_not_polled = -3;
  virtual std::optional<std::vector<std::int64_t>> exchange_heartbeats(std::int64_t /*local*/) {
    return std::vector<std::int64_t>();
  }
  /// Returns true if heartbeats can be exchanged, or are not needed.
  virtual bool supports_heartbeats() const { return true; }
  /// Lowers the timeout of collectives to `longest`; never raises it.
  virtual void limit(std::chrono::milliseconds /*longest*/) {}

 protected:
  transport() = default;
};

}  // namespace keel::detail::inline KEEL_MODE
