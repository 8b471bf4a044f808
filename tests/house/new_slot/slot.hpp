// tempo: a slot that only a test has.
//   none         the default.
//   steady<N>    N beats.
//   swing<R>     with a ratio. Options: at_most<N>, in_bars<D>, loud.
#pragma once

#include <keel/policy/duration.hpp>
#include <keel/policy/number.hpp>
#include <keel/policy/slot.hpp>

namespace keel::slot {
struct tempo;
}

namespace keel::tempo {

enum class kind : unsigned char { none, steady, swing };

struct settings {
  tempo::kind kind = kind::none;
  long long beats = 0;
  double ratio = 0.0;
  long long at_most = 0;
  long long bars = 0;  ///< updates
  bool loud = false;
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Option>
concept option = option_of<Option, settings>;

template <long long Beats>
struct at_most : sets<&settings::at_most, Beats> {};
template <steps Updates>
struct in_bars : sets<&settings::bars, Updates.count> {};
struct loud : sets<&settings::loud, true> {};

struct none : fills<slot::tempo> {
  static constexpr settings configured{};
};
template <long long Beats>
struct steady : fills<slot::tempo> {
  static constexpr settings configured{.kind = kind::steady, .beats = Beats};
};
template <number Ratio, option... Options>
struct swing : configures<slot::tempo, settings{.kind = kind::swing, .ratio = Ratio}, Options...> {};

}  // namespace keel::tempo

namespace keel {

struct slot::tempo : slot_description {
  using settings = keel::tempo::settings;
  using default_policy = keel::tempo::none;
  static constexpr char const* name = "tempo";
  static constexpr char const* given_twice = "D99";
  static constexpr policy_list<settings, 3> policies() {
    return {{{"none", {}},
             {"steady", {.kind = keel::tempo::kind::steady}, " beats ", "beats", true},
             {"swing", {.kind = keel::tempo::kind::swing}, " ratio at_most bars loud ", "ratio", true}}};
  }
  static constexpr void fields(auto& s, auto& field) {
    field.number("beats", s.beats);
    field.number("ratio", s.ratio);
    field.number("at_most", s.at_most);
    field.updates("bars", s.bars);
    field.truth("loud", s.loud);
  }
};

}  // namespace keel
