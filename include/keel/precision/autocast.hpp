// Autocast for the length of a scope, without its cache of cast weights: a forward pass without gradients, of a teacher or an
// evaluation, would leave casts there that know none, and the weights would silently not train (E33). A weight is cast once a
// forward pass anyway.
#pragma once

#include <keel/libtorch/compatibility.hpp>
#include <keel/policy/precision.hpp>

namespace keel::inline KEEL_MODE {

class autocast_scope {
 public:
  autocast_scope(at::DeviceType device, precision::kind precision)
      : device_(device), active_(precision != precision::kind::fp32), before_(libtorch::get_autocast(device)) {
    if (!active_) return;
    libtorch::set_autocast(device_, {true, precision == precision::kind::bf16 ? at::kBFloat16 : at::kHalf});
    at::autocast::set_autocast_cache_enabled(false);
    at::autocast::increment_nesting();
  }
  autocast_scope(autocast_scope const&) = delete;
  autocast_scope& operator=(autocast_scope const&) = delete;
  ~autocast_scope() {
    if (!active_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_cache_enabled(cached_before_);
    libtorch::set_autocast(device_, before_);
  }

  static bool computes_in_bfloat16(at::DeviceType device) { return libtorch::computes_in_bfloat16(device); }
  static bool computes_in_half(at::DeviceType device) { return libtorch::computes_in_half(device); }

 private:
  at::DeviceType device_;
  bool active_;
  libtorch::autocast_state before_;
  bool cached_before_ = at::autocast::is_autocast_cache_enabled();
};

}  // namespace keel::inline KEEL_MODE
