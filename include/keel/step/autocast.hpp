// Autocast for the length of a scope. The cache of cast weights is cleared when the outermost scope ends, so that no cast
// made without gradients serves a forward pass that needs them (E03).
#pragma once

#include <keel/libtorch/compatibility.hpp>
#include <keel/policy/precision.hpp>

namespace keel {

class autocast_scope {
 public:
  autocast_scope(at::DeviceType device, precision::kind precision)
      : device_(device), active_(precision != precision::kind::fp32), before_(libtorch::get_autocast(device)) {
    if (!active_) return;
    libtorch::set_autocast(device_, {true, precision == precision::kind::bf16 ? at::kBFloat16 : at::kHalf});
    at::autocast::increment_nesting();
  }
  autocast_scope(autocast_scope const&) = delete;
  autocast_scope& operator=(autocast_scope const&) = delete;
  ~autocast_scope() {
    if (!active_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    libtorch::set_autocast(device_, before_);
  }

  static bool computes_in_half(at::DeviceType device) { return libtorch::computes_in_half(device); }

 private:
  at::DeviceType device_;
  bool active_;
  libtorch::autocast_state before_;
};

}  // namespace keel
