// A step's interface to the machine that it runs on. Tests override its functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <keel/collective/launch.hpp>
#include <keel/libtorch/compatibility.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/memory/statistics.hpp>
#include <keel/policy/precision.hpp>

namespace keel::inline KEEL_MODE {

class step_environment {
 public:
  step_environment() = default;
  step_environment(step_environment const&) = default;
  step_environment& operator=(step_environment const&) = default;
  virtual ~step_environment() = default;

  /// Reads a scalar; waits if it is on a device.
  virtual double host_value(at::Tensor const& one) const { return keel::host_value(one); }
  /// True if this device itself decides whether to apply an update, and the host reads the result one update later. False on a CPU, where
  /// this would save no wait.
  virtual bool decides_on_device(at::DeviceType device) const { return device != at::kCPU; }
  virtual bool computes_in_half(at::DeviceType device) const { return libtorch::computes_in_half(device); }
  virtual bool computes_in_bfloat16(at::DeviceType device) const { return libtorch::computes_in_bfloat16(device); }
  /// Returns the autocast precision of forward passes for a recipe with the precision `requested`.
  virtual precision::kind autocast(precision::kind requested) const { return requested; }
  /// Number of processes that the launcher started. With a recipe that does not replicate, each would train alone (W01).
  virtual std::int64_t ranks() const { return read_launch_environment().size; }
  /// Number of times that the device's allocator freed its cache and retried, since the process began.
  virtual std::int64_t allocator_retries(c10::Device device) const {
    // The CPU allocator never does, and querying the process costs time.
    if (device.is_cpu()) return 0;
    auto const all = memory::statistics_of(device);
    return all ? all->retries : 0;
  }
};

}  // namespace keel::inline KEEL_MODE
