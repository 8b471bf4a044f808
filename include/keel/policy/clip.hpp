// clip: bounds the gradient of an update, after it was unscaled and found finite, and never before (G01, G08).
//   none               the default.
//   global_norm<M>     scales all gradients by M / norm if their joint L2 norm exceeds M (Pascanu et al. 2013). The usual one.
//   value<M>           clamps every element to [-M, M]; changes the direction, so only where a paper asks for it.
//   adaptive<R>        bounds each unit's gradient to R times the norm of its weights (Brock et al. 2021, "NFNets").
// Left out: norms other than L2 (they do not add over shards, G06), and clipping of every micro-batch (G02).
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::clip {

enum class kind : unsigned char { none, global_norm, value, adaptive, custom };

struct settings {
  clip::kind kind = kind::none;
  double limit = 0.0;  ///< largest norm, element or ratio, by kind
  /// A policy of one's own that decides from the joint norm alone, which all ranks share, and never from elements (G03).
  bool by_joint_norm = false;
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

struct none : fills<slot::clip> {
  static constexpr settings configured{};
};
template <double MaxNorm>
struct global_norm : fills<slot::clip> {
  static constexpr settings configured{kind::global_norm, MaxNorm};
};
template <double MaxElement>
struct value : fills<slot::clip> {
  static constexpr settings configured{kind::value, MaxElement};
};
template <double Ratio>
struct adaptive : fills<slot::clip> {
  static constexpr settings configured{kind::adaptive, Ratio};
};

}  // namespace keel::clip

namespace keel {
template <>
struct settings_of<slot::clip> {
  using type = clip::settings;
};
template <>
struct default_policy<slot::clip> {
  using type = clip::none;
};
}  // namespace keel
