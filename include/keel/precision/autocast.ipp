// Definitions for autocast.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/autocast_mode.h>

#include <keel/precision/autocast.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY autocast_scope::autocast_scope(at::DeviceType device, precision::kind precision)
    : device_(device),
      active_(precision != precision::kind::fp32),
      before_(libtorch::get_autocast(device)),
      cached_before_(libtorch::caches_casts()) {
  if (!active_) return;
  libtorch::set_autocast(device_, {true, precision == precision::kind::bf16 ? at::kBFloat16 : at::kHalf});
  libtorch::cache_casts(false);
  at::autocast::increment_nesting();
}

KEEL_BODY autocast_scope::~autocast_scope() {
  if (!active_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  libtorch::cache_casts(cached_before_);
  libtorch::set_autocast(device_, before_);
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
