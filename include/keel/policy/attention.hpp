// attention: which kernel keel's own attention uses.
//   automatic   the default: fused where LibTorch has it (2.0 on), math otherwise and in a model that differentiates twice
//               (model::has<model::inner_gradients>), for which the fused kernels have no second derivative.
//   math        every LibTorch, every device; memory grows with the square of the sequence. For the same rounding everywhere.
//   fused       LibTorch's fused kernel, asked for by name: a model that never calls keel::attention is an error (A22), and a
//               LibTorch without one says so. Memory grows with the sequence.
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

/// A class and not a namespace, so that a function may share the name: `keel::attention(query, key, value)`.
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
