// A snapshot of LibTorch's default generators, so that a step can be repeated with the same dropout.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstring>
#include <keel/libtorch/compatibility.hpp>
#include <keel/libtorch/mode.hpp>

namespace keel::inline KEEL_MODE {

/// The state of the generators that a model on one device uses: the CPU's, and that of the device if it is another.
class random_snapshot {
 public:
  static random_snapshot take(at::DeviceType device) {
    random_snapshot snapshot;
    snapshot.device_type_ = device;
    snapshot.host_ = libtorch::random_state(at::kCPU);
    if (device != at::kCPU) snapshot.device_ = libtorch::random_state(device);
    return snapshot;
  }

  void restore() const {
    if (host_.defined()) libtorch::set_random_state(at::kCPU, host_);
    // Skips the device's state if the run was resumed without the device.
    if (device_.defined() && device_type_ != at::kCPU && at::globalContext().hasCUDA())
      libtorch::set_random_state(device_type_, device_);
  }

  bool taken() const { return host_.defined(); }
  /// Returns true if no generator has advanced since the snapshot was taken.
  bool is_current() const {
    auto const same = [](at::Tensor const& before, at::DeviceType device) {
      at::Tensor const now = libtorch::random_state(device);
      return before.nbytes() == now.nbytes() && std::memcmp(before.data_ptr(), now.data_ptr(), now.nbytes()) == 0;
    };
    return same(host_, at::kCPU) && (!device_.defined() || same(device_, device_type_));
  }

  template <class Archive>
  void visit(Archive& archive) {
    auto type = static_cast<std::int64_t>(device_type_);
    archive("host", host_);
    archive("device", device_);
    archive("device_type", type);
    device_type_ = static_cast<at::DeviceType>(type);
  }

 private:
  at::DeviceType device_type_ = at::kCPU;
  at::Tensor host_;    // uint8, 5056 bytes
  at::Tensor device_;  // undefined for a model on the CPU
};

/// Makes LibTorch reject operators without a deterministic kernel during its lifetime. The setting is process-wide, so it also affects a
/// second trainer that runs at the same time.
class deterministic_scope {
 public:
  explicit deterministic_scope(bool active)
      : active_(active),
        before_(at::globalContext().deterministicAlgorithms()),
        warn_only_(at::globalContext().deterministicAlgorithmsWarnOnly()) {
    if (active_) at::globalContext().setDeterministicAlgorithms(true, false);
  }
  deterministic_scope(deterministic_scope const&) = delete;
  deterministic_scope& operator=(deterministic_scope const&) = delete;
  ~deterministic_scope() {
    if (active_) at::globalContext().setDeterministicAlgorithms(before_, warn_only_);
  }

 private:
  bool active_;
  bool before_;
  bool warn_only_;
};

}  // namespace keel::inline KEEL_MODE
