// ema<Decay>: keeps an exponential moving average of the parameters, updated once per applied update (M03).
//   no_ema      the default.
//   ema<D>      average <- D * average + (1 - D) * parameters.
// Left out: half-lives in epochs or tokens (M01: one unit, the update).
#pragma once

#include <keel/policy/slot.hpp>

namespace keel {

struct ema_settings {
  double decay = 0.0;  ///< 0: no average is kept
  friend constexpr bool operator==(ema_settings const&, ema_settings const&) = default;
};

struct no_ema : fills<slot::ema> {
  static constexpr ema_settings configured{};
};
template <double Decay>
struct ema : fills<slot::ema> {
  static constexpr ema_settings configured{Decay};
};

template <>
struct settings_of<slot::ema> {
  using type = ema_settings;
};
template <>
struct default_policy<slot::ema> {
  using type = no_ema;
};

}  // namespace keel
