// ema<Decay>: keeps an exponential moving average of the parameters, updated once per applied update (M03).
//   no_ema      the default.
//   ema<D>      average <- D * average + (1 - D) * parameters. Option: ema_buffers, the floating-point buffers too, such as the
//               running mean and variance of a batch norm, which belong to the parameters of now and not to their average.
// Left out: half-lives in epochs or tokens (M01: one unit, the update).
#pragma once

#include <keel/policy/number.hpp>
#include <keel/policy/slot.hpp>

namespace keel {

struct ema_settings {
  double decay = 0.0;    ///< above 0 and below 1
  bool buffers = false;  ///< are averaged too
  bool kept = false;     ///< there is an average
  friend constexpr bool operator==(ema_settings const&, ema_settings const&) = default;
};

struct no_ema : fills<slot::ema> {
  static constexpr ema_settings configured{};
};
struct ema_buffers {
  static constexpr void apply(ema_settings& to) { to.buffers = true; }
};
template <number Decay, option_of<ema_settings>... Options>
struct ema : fills<slot::ema> {
  static constexpr ema_settings start{.decay = Decay, .kept = true};
  static constexpr ema_settings configured = with_options<ema_settings, Options...>(start);
  static constexpr bool options_agree = keel::options_agree<ema_settings, Options...>(start);
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
