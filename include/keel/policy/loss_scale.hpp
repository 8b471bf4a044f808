// loss_scale: multiplies the loss so that small fp16 gradients do not flush to zero, and divides the gradients again.
//   none         the default; right for fp32 and bf16 (P02).
//   fixed<S>     one factor for the whole run; for a model whose range is known.
//   dynamic<..>  grows after a stretch of finite steps, backs off after an overflow (Micikevicius et al. 2018,
//                "Mixed Precision Training"; the algorithm of the field's GradScaler), with a floor and an end at the floor.
// Options of dynamic: initial<S>, growth<F>, backoff<F>, growth_interval<N>, hysteresis<N>, floor<S>, at_floor_raise,
// at_floor_continue.
// Left out: a scaler without a floor. It skips every step for ever, without a word (P10).
#pragma once

#include <keel/policy/number.hpp>
#include <keel/policy/slot.hpp>

namespace keel::loss_scale {

enum class kind : unsigned char { none, fixed, dynamic };

struct settings {
  loss_scale::kind kind = kind::none;
  double initial = 1.0;
  double growth = 2.0;               ///< factor after `growth_interval` finite steps in a row
  double backoff = 0.5;              ///< factor after an overflow
  long long growth_interval = 2000;  ///< updates that were applied
  long long hysteresis = 1;          ///< overflows before the scale backs off; counted anew when it grows
  double floor = 1.0;                ///< the scale never falls below; 0 means no floor
  bool raise_at_floor = true;        ///< an overflow at the floor is an error, not one more skipped step
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Option>
concept option = option_of<Option, settings>;

template <number Scale>
struct initial {
  static constexpr void apply(settings& to) { to.initial = Scale; }
};
template <number Factor>
struct growth {
  static constexpr void apply(settings& to) { to.growth = Factor; }
};
template <number Factor>
struct backoff {
  static constexpr void apply(settings& to) { to.backoff = Factor; }
};
template <long long Updates>
struct growth_interval {
  static constexpr void apply(settings& to) { to.growth_interval = Updates; }
};
template <long long Overflows>
struct hysteresis {
  static constexpr void apply(settings& to) { to.hysteresis = Overflows; }
};
template <number Scale>
struct floor {
  static constexpr void apply(settings& to) { to.floor = Scale; }
};
struct at_floor_raise {
  static constexpr void apply(settings& to) { to.raise_at_floor = true; }
};
struct at_floor_continue {
  static constexpr void apply(settings& to) { to.raise_at_floor = false; }
};

struct none : fills<slot::loss_scale> {
  static constexpr settings configured{};
};

template <number Scale>
struct fixed : fills<slot::loss_scale> {
  static constexpr settings configured{.kind = kind::fixed, .initial = Scale};
};

template <option... Options>
struct dynamic : fills<slot::loss_scale> {
  static constexpr settings start{.kind = kind::dynamic, .initial = 65536.0};
  static constexpr settings configured = with_options<settings, Options...>(start);
  static constexpr bool options_agree = keel::options_agree<settings, Options...>(start);
};

}  // namespace keel::loss_scale

namespace keel {
template <>
struct settings_of<slot::loss_scale> {
  using type = loss_scale::settings;
};
template <>
struct default_policy<slot::loss_scale> {
  using type = loss_scale::none;
};
}  // namespace keel
