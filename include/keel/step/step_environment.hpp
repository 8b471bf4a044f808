// What a step takes from the machine that it runs on. A test derives from it and replaces a function.
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

  /// The host reads a number that may be on a device, and waits for it.
  virtual double host_value(at::Tensor const& one) const { return keel::host_value(one); }
  /// Whether updates on this device are decided there and read by the host one update later. A CPU has nothing to wait for.
  virtual bool decides_on_device(at::DeviceType device) const { return device != at::kCPU; }
  virtual bool computes_in_half(at::DeviceType device) const { return libtorch::computes_in_half(device); }
  virtual bool computes_in_bfloat16(at::DeviceType device) const { return libtorch::computes_in_bfloat16(device); }
  /// What forward passes are cast to, by a recipe of this precision.
  virtual precision::kind autocast(precision::kind asked) const { return asked; }
  /// The processes that the launcher started: of a recipe that does not shard, each would train alone (W01).
  virtual std::int64_t ranks() const { return launched().size; }
  /// How often a device's allocator had to give its cache back and try again, since the process began.
  virtual std::int64_t allocator_retries(c10::Device device) const {
    // The CPU's never does, and asking costs a look at the process.
    if (device.is_cpu()) return 0;
    auto const all = memory::statistics_of(device);
    return all ? all->retries : 0;
  }
};

}  // namespace keel::inline KEEL_MODE
