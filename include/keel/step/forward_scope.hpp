// Activates a recipe's settings for a forward pass (autocast, recompute, attention) for its lifetime.
#pragma once

#include <ATen/core/Tensor.h>

#include <keel/attention/attention_scope.hpp>
#include <keel/oom/ladder_position.hpp>
#include <keel/precision/autocast.hpp>
#include <keel/recompute/unit_scope.hpp>

namespace keel::detail::inline KEEL_MODE {

class forward_scope {
 public:
  /// `listener`: called for units, or null; must outlive this object.
  forward_scope(at::DeviceType device, precision::kind precision, memory_settings const& relief,
                unit_listener* listener = nullptr)
      : autocast_(device, precision), units_(relief.recompute, listener), attention_(relief.attention) {}

  /// Throw recipe_error if the model called no keel::unit, or no keel::attention, in this scope.
  void require_units() const { units_.require_any(); }
  void require_attention() const { attention_.require_any(); }

 private:
  autocast_scope autocast_;
  unit_scope units_;
  attention_scope attention_;
};

}  // namespace keel::detail::inline KEEL_MODE
