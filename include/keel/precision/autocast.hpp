// Autocast for the length of a scope, without its cache of cast weights: a forward pass without gradients, of a teacher or an
// evaluation, would leave casts there that know none, and the weights would silently not train (E33). A weight is cast once a
// forward pass anyway.
#pragma once

#include <keel/libtorch/compatibility.hpp>
#include <keel/libtorch/mode.hpp>
#include <keel/policy/precision.hpp>

namespace keel::inline KEEL_MODE {

class autocast_scope {
 public:
  autocast_scope(at::DeviceType device, precision::kind precision);
  autocast_scope(autocast_scope const&) = delete;
  autocast_scope& operator=(autocast_scope const&) = delete;
  ~autocast_scope();

 private:
  at::DeviceType device_;
  bool active_;
  libtorch::autocast_state before_;
  bool cached_before_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/precision/autocast.ipp>
#endif
