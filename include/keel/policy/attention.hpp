// attention: the kernel that keel::attention uses.
//   automatic   the default: fused if LibTorch has it (2.0 and later). Otherwise math, also for a model that differentiates twice
//               (model::has<model::inner_gradients>), because the fused kernels have no second derivative.
//   math        works with every LibTorch and on every device; memory grows with the square of the sequence length. Use it for identical
//               rounding everywhere.
//   fused       LibTorch's fused kernel; memory grows linearly with the sequence length. Rejected if the model never calls keel::attention
//               (A22), or if LibTorch has no such kernel.
// Left out: kernels that LibTorch does not ship.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct attention;
}

namespace keel {

enum class attention_kind : unsigned char { automatic, math, fused };

struct attention_settings {
  attention_kind kind = attention_kind::automatic;
  friend constexpr bool operator==(attention_settings const&, attention_settings const&) = default;
};

/// A class instead of a namespace, so that a function may have the same name: `keel::attention(query, key, value)`.
struct attention {
  using kind = attention_kind;
  using settings = attention_settings;
  struct automatic : fills<slot::attention> {
    static constexpr attention_settings configured{};
  };
  struct math : fills<slot::attention> {
    static constexpr attention_settings configured{attention_kind::math};
  };
  struct fused : fills<slot::attention> {
    static constexpr attention_settings configured{attention_kind::fused};
  };
};

struct slot::attention : slot_description {
  using settings = attention_settings;
  using default_policy = keel::attention::automatic;
  static constexpr char const* name = "attention";
  static constexpr char const* given_twice = "D08";
  static constexpr policy_list<settings, 3> policies() {
    return {{{"automatic", {}}, {"math", {attention_kind::math}}, {"fused", {attention_kind::fused}}}};
  }
};

}  // namespace keel
