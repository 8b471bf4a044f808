// attention: which kernel keel's own attention uses.
//   math    the default: every LibTorch, every device; memory grows with the square of the sequence.
//   fused   LibTorch's fused kernel where it has one; memory grows with the sequence.
// Left out: kernels that LibTorch does not ship.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel {

enum class attention_kind : unsigned char { math, fused };

struct attention_settings {
  attention_kind kind = attention_kind::math;
  friend constexpr bool operator==(attention_settings const&, attention_settings const&) = default;
};

/// A class and not a namespace, so that a function may share the name: `keel::attention(query, key, value)`.
struct attention {
  using kind = attention_kind;
  using settings = attention_settings;
  struct math : fills<slot::attention> {
    static constexpr attention_settings configured{};
  };
  struct fused : fills<slot::attention> {
    static constexpr attention_settings configured{attention_kind::fused};
  };
};

template <>
struct settings_of<slot::attention> {
  using type = attention_settings;
};
template <>
struct default_policy<slot::attention> {
  using type = attention::math;
};

}  // namespace keel
