// loss_scale: multiplies the loss so that small fp16 gradients do not underflow to zero, and divides the gradients afterwards.
//   none         the default; right for fp32 and bf16 (P02).
//   fixed<S>     one factor for the whole run; for a model with a known gradient range.
//   dynamic<..>  grows after a number of consecutive finite steps and backs off after an overflow (Micikevicius et al. 2018, "Mixed
//                Precision Training"; the algorithm of PyTorch's GradScaler), down to a floor; an overflow at the floor can end the run.
// Options of dynamic: initial<S>, growth<F>, backoff<F>, growth_interval<N>, hysteresis<N>, floor<S>, at_floor_raise, at_floor_continue.
// Left out: a scaler without a floor, which can skip every step forever without an error (P10).
#pragma once

#include <keel/policy/number.hpp>
#include <keel/policy/slot.hpp>

namespace keel::slot {
struct loss_scale;
}

namespace keel::loss_scale {

enum class kind : unsigned char { none, fixed, dynamic };

struct settings {
  loss_scale::kind kind = kind::none;
  double initial = 1.0;              ///< the scale at the start of the run
  double growth = 2.0;               ///< factor after `growth_interval` consecutive finite steps
  double backoff = 0.5;              ///< factor after an overflow
  long long growth_interval = 2000;  ///< number of applied updates
  long long hysteresis = 1;          ///< overflows before the scale backs off; counted from zero when it grows
  double floor = 1.0;                ///< lower limit of the scale; 0: no floor
  bool raise_at_floor = true;        ///< an overflow at the floor ends the run instead of skipping one more step
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Option>
concept option = option_of<Option, settings>;

template <number Scale>
struct initial : sets<&settings::initial, Scale> {};
template <number Factor>
struct growth : sets<&settings::growth, Factor> {};
template <number Factor>
struct backoff : sets<&settings::backoff, Factor> {};
template <long long Updates>
struct growth_interval : sets<&settings::growth_interval, Updates> {};
template <long long Overflows>
struct hysteresis : sets<&settings::hysteresis, Overflows> {};
template <number Scale>
struct floor : sets<&settings::floor, Scale> {};
struct at_floor_raise : sets<&settings::raise_at_floor, true> {};
struct at_floor_continue : sets<&settings::raise_at_floor, false> {};

struct none : fills<slot::loss_scale> {
  static constexpr settings configured{};
};

template <number Scale>
struct fixed : fills<slot::loss_scale> {
  static constexpr settings configured{.kind = kind::fixed, .initial = Scale};
};

inline constexpr settings dynamic_start{.kind = kind::dynamic, .initial = 65536.0};
template <option... Options>
struct dynamic : configures<slot::loss_scale, dynamic_start, Options...> {};

}  // namespace keel::loss_scale

namespace keel {

struct slot::loss_scale : slot_description {
  using settings = keel::loss_scale::settings;
  using default_policy = keel::loss_scale::none;
  static constexpr char const* name = "loss_scale";
  static constexpr char const* given_twice = "D01";
  static constexpr policy_list<settings, 3> policies() {
    return {{{"none", {}},
             {"fixed", {.kind = keel::loss_scale::kind::fixed}, " initial ", "initial", true},
             {"dynamic", keel::loss_scale::dynamic_start, "*"}}};
  }
  static constexpr void fields(auto& s, auto& field) {
    field.number("initial", s.initial);
    field.number("growth", s.growth);
    field.number("backoff", s.backoff);
    field.number("growth_interval", s.growth_interval);
    field.number("hysteresis", s.hysteresis);
    field.number("floor", s.floor);
    field.truth("raise_at_floor", s.raise_at_floor);
  }
};

}  // namespace keel
