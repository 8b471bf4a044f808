// Copies numbers from a device to the host asynchronously.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <keel/libtorch/mode.hpp>
#include <optional>
#include <thread>
#include <utility>

namespace keel::inline KEEL_MODE {

class device_reading {
 public:
  /// Starts copying `values`, doubles of any shape. Values on the CPU are available immediately.
  explicit device_reading(at::Tensor values) {
    if (values.device().is_cpu()) {
      host_ = std::move(values);
      return;
    }
    host_ = at::empty(values.sizes(), at::TensorOptions().dtype(at::kDouble).pinned_memory(true));
    host_.copy_(values, /*non_blocking=*/true);
    c10::impl::VirtualGuardImpl const device(values.device().type());
    arrived_.emplace(values.device().type());
    arrived_->record(device.getStream(values.device()));
    device_ = std::move(values);
  }

  bool has_arrived() const { return !arrived_ || arrived_->query(); }
  /// Waits for at most `longest`; returns false if the values have not arrived.
  bool wait_for(std::chrono::milliseconds longest) const {
    auto const last = std::chrono::steady_clock::now() + longest;
    while (!has_arrived()) {
      if (std::chrono::steady_clock::now() >= last) return false;
      std::this_thread::yield();
    }
    return true;
  }

  /// Waits for the values, but not for work that was enqueued on the device later.
  at::Tensor const& read() {
    // Polls, because a query does not synchronize: later work continues to be launched and run.
    while (arrived_ && !arrived_->query()) std::this_thread::yield();
    arrived_.reset();
    return host_;
  }

 private:
  at::Tensor host_;
  at::Tensor device_;  ///< kept alive until its copy has arrived
  std::optional<c10::Event> arrived_;
};

}  // namespace keel::inline KEEL_MODE
