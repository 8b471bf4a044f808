// clip: bounds the gradient of an update, always after it was unscaled and found finite (G01, G08).
//   none               the default.
//   global_norm<M>     scales all gradients by M / norm if their joint L2 norm exceeds M (Pascanu et al. 2013). The most common choice.
//                      With order<1>, order<infinity> or any order of at least 1, M bounds that norm instead; the norm that a step reports
//                      and that spikes are judged by is always L2.
//   value<M>           clamps every element to [-M, M]. Changes the direction of the gradient, so use it only to reproduce a paper.
//   adaptive<R>        bounds the gradient of each unit (a row of a matrix or a filter) to R times the norm of the unit's weights (Brock et
//                      al. 2021, "NFNets"). Exclude the last layer's weights with a custom policy.
//   zscore<Z,..>       if the joint norm exceeds the mean of the recent norms by more than Z standard deviations, scales all gradients to
//                      that limit, which follows the run (Kumar et al. 2025, "ZClip"). Options: window<N>; at_most<M>, a bound that holds
//                      from the first update on. The standard deviation is floored at 1 % of the mean.
// Left out: orders below 1, which are not norms (G15), orders other than 2 over sharded gradients (G06), and clipping of every micro-batch
// (G02).
#pragma once

#include <keel/policy/name.hpp>
#include <keel/policy/number.hpp>
#include <keel/policy/slot.hpp>
#include <limits>

namespace keel::slot {
struct clip;
}

namespace keel::clip {

/// The order of the maximum norm: clip::order<clip::infinity>.
inline constexpr double infinity = std::numeric_limits<double>::infinity();

enum class kind : unsigned char { none, global_norm, value, adaptive, zscore, custom };

struct settings {
  clip::kind kind = kind::none;
  double limit = 0.0;  ///< largest norm, element, ratio or number of standard deviations, depending on kind
  /// True for a custom policy that decides only from the joint norm, which all ranks share, and never from elements (G03).
  bool by_joint_norm = false;
  long long window = 0;  ///< zscore: number of applied updates in the history
  double at_most = 0.0;  ///< zscore: largest norm, also before there is a history; 0: none
  double order = 2.0;    ///< global_norm: the p of the bounded p-norm
  short_name own{};      ///< name of a custom policy, filled in by the recipe
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Option>
concept option = option_of<Option, settings>;

template <long long Updates>
struct window : sets<&settings::window, Updates> {};
template <number MaxNorm>
struct at_most : sets<&settings::at_most, MaxNorm> {};
/// A number of at least 1, or infinity.
template <number P>
struct order : sets<&settings::order, P> {};

struct none : fills<slot::clip> {
  static constexpr settings configured{};
};
template <number MaxNorm, option... Options>
struct global_norm : configures<slot::clip, settings{kind::global_norm, MaxNorm}, Options...> {};
template <number MaxElement>
struct value : fills<slot::clip> {
  static constexpr settings configured{kind::value, MaxElement};
};
template <number Ratio>
struct adaptive : fills<slot::clip> {
  static constexpr settings configured{kind::adaptive, Ratio};
};

constexpr settings zscore_start(double deviations) { return {.kind = kind::zscore, .limit = deviations, .window = 128}; }
template <number Deviations, option... Options>
struct zscore : configures<slot::clip, zscore_start(Deviations), Options...> {};

}  // namespace keel::clip

namespace keel {

struct slot::clip : slot_description {
  using settings = keel::clip::settings;
  using default_policy = keel::clip::none;
  static constexpr char const* name = "clip";
  static constexpr char const* given_twice = "G07";
  static constexpr policy_list<settings, 6> policies() {
    return {{{"none", {}},
             {"global_norm", {keel::clip::kind::global_norm}, " limit order ", "limit", true},
             {"value", {keel::clip::kind::value}, " limit ", "limit", true},
             {"adaptive", {keel::clip::kind::adaptive}, " limit ", "limit", true},
             {"zscore", keel::clip::zscore_start(0.0), " limit window at_most ", "limit", true},
             {"custom", {keel::clip::kind::custom}, "*"}}};
  }
  static constexpr void fields(auto& s, auto& field) {
    field.number("limit", s.limit);
    field.updates("window", s.window);
    field.number("at_most", s.at_most);
    field.number_or_infinity("order", s.order);
    field.truth("by_joint_norm", s.by_joint_norm);
    field.name("name", s.own.letters);
  }
};

}  // namespace keel
