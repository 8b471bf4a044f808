// The seams of keel: what a step or trainer takes from the world around it. A test derives from environment and replaces
// one type; the real thing costs nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <keel/collective/launch.hpp>
#include <keel/collective/world.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/memory/statistics.hpp>
#include <keel/precision/autocast.hpp>

namespace keel::inline KEEL_MODE {

struct step_environment {
  using autocast = autocast_scope;
  /// The host reads a number that may be on a device, and waits for it.
  static double host_value(at::Tensor const& one) { return keel::host_value(one); }
  /// Whether updates on this device are decided there and read by the host one update later. A CPU has nothing to wait for.
  static bool decides_on_device(at::DeviceType device) { return device != at::kCPU; }
  /// The ranks that train together.
  using world = world_of_one;
  /// The processes that the launcher started: of a recipe that does not shard, each would train alone (W01).
  static std::int64_t ranks() { return launched().size; }
  /// How often a device's allocator had to give its cache back and try again, since the process began.
  static std::int64_t allocator_retries(c10::Device device) {
    // The CPU's never does, and asking costs a look at the process.
    if (device.is_cpu()) return 0;
    auto const all = memory::statistics_of(device);
    return all ? all->retries : 0;
  }
};

}  // namespace keel::inline KEEL_MODE
