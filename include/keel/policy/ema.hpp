// ema<Decay>: keeps an exponential moving average of the parameters, updated once per applied update (M03).
//   no_ema      the default.
//   ema<D>      average <- D * average + (1 - D) * parameters. Option ema_buffers: also averages floating-point buffers, such as the
//               running mean and variance of a batch norm, which otherwise match the current parameters and not their average.
// Left out: half-lives in epochs or tokens (M01: one unit, the update).
#pragma once

#include <keel/policy/number.hpp>
#include <keel/policy/slot.hpp>

namespace keel::slot {
struct ema;
}

namespace keel {

struct ema_settings {
  double decay = 0.0;    ///< above 0 and below 1
  bool buffers = false;  ///< buffers are averaged, too
  bool kept = false;     ///< a moving average is kept
  friend constexpr bool operator==(ema_settings const&, ema_settings const&) = default;
};

struct no_ema : fills<slot::ema> {
  static constexpr ema_settings configured{};
};
struct ema_buffers : sets<&ema_settings::buffers, true> {};
template <number Decay, option_of<ema_settings>... Options>
struct ema : configures<slot::ema, ema_settings{.decay = Decay, .kept = true}, Options...> {};

struct slot::ema : slot_description {
  using settings = ema_settings;
  using default_policy = no_ema;
  static constexpr char const* name = "ema";
  static constexpr char const* given_twice = "D13";
  static constexpr bool is_single = true;
  static constexpr char const* keep_one = "keep one keel::ema<D>, or keel::no_ema";
  static constexpr bool is_same_policy(settings const& a, settings const& b) { return a.kept == b.kept; }
  static constexpr policy_list<settings, 2> policies() {
    return {{{.name = "none", .start = {}, .typed = "no_ema"}, {"ema", {.kept = true}, "*", "decay"}}};
  }
  static constexpr void fields(auto& s, auto& field) {
    field.number("decay", s.decay);
    field.truth("buffers", s.buffers);
  }
};

}  // namespace keel
