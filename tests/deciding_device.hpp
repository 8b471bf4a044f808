// Devices that decide updates, on any machine: what differs there is who decides, and when the host learns of it.
#pragma once

#include "support.hpp"

namespace keel_test {

struct on_a_device : keel::environment {
  bool decides_on_device(at::DeviceType) const override { return true; }
};

/// Claims fp16 kernels but computes in fp32, so that loss scaling can be tried on any machine.
struct scaled_on_host : keel::environment {
  bool computes_in_half(at::DeviceType) const override { return true; }
  bool computes_in_bfloat16(at::DeviceType) const override { return true; }
  keel::precision::kind autocast(keel::precision::kind) const override { return keel::precision::kind::fp32; }
};
struct scaled_on_device : scaled_on_host {
  bool decides_on_device(at::DeviceType) const override { return true; }
};

}  // namespace keel_test
