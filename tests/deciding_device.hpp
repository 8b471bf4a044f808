// Devices that decide updates, on any machine: what differs there is who decides, and when the host learns of it.
#pragma once

#include "support.hpp"

namespace keel_test {

struct on_a_device : keel::environment {
  static bool decides_on_device(at::DeviceType) { return true; }
};

/// Claims fp16 kernels but computes in fp32, so that loss scaling can be tried on any machine.
struct scaled_on_host : keel::environment {
  struct autocast {
    autocast(at::DeviceType, keel::precision::kind) {}
    static bool computes_in_half(at::DeviceType) { return true; }
    static bool computes_in_bfloat16(at::DeviceType) { return true; }
  };
};
struct scaled_on_device : scaled_on_host {
  static bool decides_on_device(at::DeviceType) { return true; }
};

}  // namespace keel_test
